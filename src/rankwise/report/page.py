"""The page of a scan, a diff or a series: one HTML file that works as a mail attachment and never asks the network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankwise.files import write_whole
from rankwise.report.document import assemble
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
    return assemble(
        "page.html.j2",
        scripts=SCRIPTS,
        data=script_json(data),
        summaries=[summarize(one, position) for position, one in enumerate(records)],
        quantities=data["quantities"],
        attention=any(site["kind"] in ATTENTION for site in records[-1]["sites"]),
    )


def write_page(record: Record | Sequence[Record], path: str | Path) -> Path:
    """Render the page into a file, whose folder must exist; returns its path."""
    return write_whole(path, render(record))
