"""The release run as tables: for the terminal, and for the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankwise.errors import require
from rankwise.sites.certify.row import Row

if TYPE_CHECKING:
    from rich.table import Table

_LONGEST = 160


@dataclass(frozen=True)
class Line:
    """One model type: how it fared with its own configuration, and in how many variants of it all sites passed."""

    model_type: str
    outcome: str
    sites: int
    passed: int
    variants: int
    tried: int
    error: float
    detail: str


def lines(rows: Sequence[Row]) -> list[Line]:
    """A line for each model type, in the order of their names."""
    by_type: dict[str, list[Row]] = {}
    for row in rows:
        by_type.setdefault(row.model_type, []).append(row)
    return [_line(name, members) for name, members in sorted(by_type.items())]


def summary(rows: Sequence[Row]) -> str:
    """How many types were proved, partly proved, and not."""
    every = lines(rows)
    counts = {
        outcome: sum(line.outcome == outcome for line in every) for outcome in ("all", "some", "none", "not built")
    }
    return (
        f"{counts['all']} model types with every attention site certified, {counts['some']} with some, "
        f"{counts['none']} with none, {counts['not built']} that do not build here"
    )


def table(rows: Sequence[Row]) -> Table:
    """The table for the terminal."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=summary(rows))
    for column in ("model type", "certified", "sites", "variants", "error", "what is not, and why"):
        shown.add_column(column, justify="right" if column in ("sites", "variants", "error") else "left")
    for line in lines(rows):
        shown.add_row(*map(Text, _cells(line)))
    return shown


def markdown_table(rows: Sequence[Row]) -> str:
    """The page of the documentation."""
    version = require("transformers", extra="hf").__version__
    head = f"""# Certified layouts

<!-- Written by `rankwise certify --release --markdown docs/certified.md`; do not edit. -->

Every model type of transformers {version}, built small with random parameters of pairwise different sizes, and its
attention read by the layout table. A site is *certified* when the site's formula reproduces the logits (for QK) or the
outputs (for OV) of the real module to 1e-5 of the largest number in float64 (1e-4 where a module only runs in float32).
`variants` counts the configurations, its own and each switch turned, in which every site passed, of those that were
tried and built. Sites of just these configurations carry `certified = "release"`; everything else says `no` until
`sites.certify()` proves it on the model itself.

{summary(rows)}.

| model type | certified | sites | variants | largest error | what is not, and why |
|---|---|---|---|---|---|
"""
    body = "".join(f"| {' | '.join(cell.replace('|', '/') for cell in _cells(line))} |\n" for line in lines(rows))
    return head + body


def _line(name: str, rows: Sequence[Row]) -> Line:
    own = next((row for row in rows if not row.changes), rows[0])
    built = [row for row in rows if row.sites]
    whole = [row for row in built if row.by_value == row.sites]
    if own.sites:
        outcome = "all" if own.by_value == own.sites else "some" if own.by_value else "none"
    else:
        outcome = "not built" if "build" in own.reason or "process" in own.reason else "none"
    failures = [f"{site}: {reason}" for site, reason in (own.failures or {}).items()]
    unread = [f"{own.unread} unread: {own.unread_reason}"] if own.unread else []
    detail = "; ".join([*failures[:1], *unread, *filter(None, [own.reason])])
    errors = max((row.largest_error for row in whole), default=own.largest_error)
    return Line(name, outcome, own.sites, own.by_value, len(whole), len(built), errors, detail)


def _cells(line: Line) -> tuple[str, ...]:
    detail = line.detail if len(line.detail) <= _LONGEST else line.detail[: _LONGEST - 1] + "…"
    return (
        line.model_type,
        line.outcome,
        f"{line.passed}/{line.sites}" if line.sites else "",
        f"{line.variants}/{line.tried}" if line.tried else "",
        f"{line.error:.0e}" if line.passed else "",
        detail,
    )
