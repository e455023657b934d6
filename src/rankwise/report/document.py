"""What every page has in common: one HTML file, whose scripts are named by their hashes and which asks no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from rankwise.errors import require


def assemble(template: str, *, scripts: Sequence[str], **values: object) -> str:
    """A page as text, Plotly in it.

    Arguments:
        template: the name of a Jinja template among the assets; it is given `policy` and `scripts` too.
        scripts: names of scripts among the assets, in the order that they run.
        values: what else the template speaks of. Text in it is escaped.
    """
    jinja = require("jinja2", extra="report")
    plotly = require("plotly.offline", extra="report")
    # Line ends are normalized by the browser before it hashes a script.
    texts = [text.replace("\r\n", "\n") for text in (plotly.get_plotlyjs(), *(asset(name) for name in scripts))]
    environment = jinja.Environment(
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(asset(template)).render(
        policy=_policy(texts), style=asset("page.css"), scripts=texts, **values
    )


def asset(name: str) -> str:
    """A file of the package's assets."""
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
