"""The page of a scan, a diff or a series: one HTML file that works as a mail attachment and never asks the network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from rankwise.errors import require
from rankwise.files import write_whole
from rankwise.report.packing import script_json
from rankwise.report.record import ATTENTION, Record, checked
from rankwise.report.summary import summarize
from rankwise.report.view import page_data

SCRIPTS = ("format.js", "state.js", "charts.js", "maps.js", "details.js", "balance.js", "table.js", "page.js")


def render(record: Record | Sequence[Record]) -> str:
    """The page as text.

    Nothing in it can run but the scripts of this package, each allowed by its hash; every name that came out of a
    checkpoint is text, in HTML as in the data that the scripts read.

    Arguments:
        record: what `rankwise scan --json` wrote, or a list of such records: a series, oldest first.

    Returns:
        HTML. `write_page` writes it to a file.
    """
    records = checked(record)
    data = page_data(records)
    jinja = require("jinja2", extra="report")
    plotly = require("plotly.offline", extra="report")
    # Line ends are normalized by the browser before it hashes a script.
    scripts = [text.replace("\r\n", "\n") for text in (plotly.get_plotlyjs(), *(_asset(name) for name in SCRIPTS))]
    environment = jinja.Environment(
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(_asset("page.html.j2")).render(
        policy=_policy(scripts),
        style=_asset("page.css"),
        scripts=scripts,
        data=script_json(data),
        summaries=[summarize(one, position) for position, one in enumerate(records)],
        quantities=data["quantities"],
        attention=any(site["kind"] in ATTENTION for site in records[-1]["sites"]),
    )


def write_page(record: Record | Sequence[Record], path: str | Path) -> Path:
    """Render the page into a file, whose folder must exist; returns its path."""
    return write_whole(path, render(record))


def _asset(name: str) -> str:
    return files("rankwise.report").joinpath("assets", name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """A content security policy: these scripts, inline styles (Plotly sets them), images made in place, no network."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii") for script in scripts)
    return "; ".join(
        [
            "default-src 'none'",
            "script-src " + " ".join(f"'sha256-{digest}'" for digest in hashes),
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
