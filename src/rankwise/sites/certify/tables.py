"""The release run as tables: for the terminal, and for the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankwise.sites.certify.release import shipped
from rankwise.sites.certify.row import Row

if TYPE_CHECKING:
    from rich.table import Table

_LONGEST = 160

OUTCOMES = {
    "all by value": "every attention site by its logits or outputs",
    "some by value": "some sites so",
    "gauge only": "sites by gauge moves alone, which cannot tell queries from keys",
    "none": "sites that no proof passed",
    "unread": "attention that is listed as unread, with the reason",
    "no attention": "no attention at all",
    "not built": "no small model of it builds here",
}
"""What may become of a model type, the best first, in words that follow its count."""


@dataclass(frozen=True)
class Line:
    """One model type: how it fared with its own configuration, and in how many variants of it all sites passed.

    Arguments:
        model_type: the type.
        outcome: one of `OUTCOMES`.
        sites: how many attention sites it has, `proved` of them by value.
        variants: of how many configurations all sites were proved, of `tried` that built.
        error: the largest relative error among the proofs.
        detail: what is not proved or not read, and why.
    """

    model_type: str
    outcome: str
    sites: int
    proved: int
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


def shipped_lines() -> list[Line]:
    """The lines of the release that this package is."""
    return [Line(**line) for line in shipped()["lines"]]


def summary(every: Sequence[Line]) -> str:
    """How many types there are of each outcome."""
    counts = {outcome: sum(line.outcome == outcome for line in every) for outcome in OUTCOMES}
    parts = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
    return f"{len(every)} model types: {parts}"


def table(every: Sequence[Line]) -> Table:
    """The table for the terminal."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=summary(every))
    for column in ("model type", "proved", "sites", "variants", "error", "what is not, and why"):
        shown.add_column(column, justify="right" if column in ("sites", "variants", "error") else "left")
    for line in every:
        shown.add_row(*map(Text, _cells(line)))
    return shown


def markdown_table(every: Sequence[Line], version: str) -> str:
    """The page of the documentation.

    Arguments:
        every: a line for each type.
        version: of transformers, whose types they are.
    """
    words = "\n".join(f"- *{outcome}*: {meaning}" for outcome, meaning in OUTCOMES.items())
    head = f"""# Certified model types

<!-- Written by `rankwise certify --markdown docs/certified.md`; do not edit. -->

Every model type of transformers {version} as `rankwise certify --release` found it: built small with random parameters
and pairwise different sizes, and its attention read by the [table of layouts](layouts.md). A site is proved *by value*
when its formula reproduces the logits (QK) or the outputs (OV) of the real module to 1e-5 of the largest number in
float64, to 1e-4 where a module only runs in float32. `rankwise certify` prints this table, and `rankwise certify llama`
proves a type again.

{words}

`sites` counts the attention sites proved by value, of those found. `variants` counts the configurations, its own and
each switch turned, in which every site passed, of those that were built. Sites of just these configurations carry
`certified = "release"`; everything else says `no` until `sites.certify()` proves it on the model itself.

**{summary(every)}.**

| model type | proved | sites | variants | largest error | what is not, and why |
|---|---|---|---|---|---|
"""
    body = "".join(f"| {' | '.join(cell.replace('|', '/') for cell in _cells(line))} |\n" for line in every)
    return head + body


def _line(name: str, rows: Sequence[Row]) -> Line:
    own = next((row for row in rows if not row.changes), rows[0])
    built = [row for row in rows if row.sites]
    whole = [row for row in built if row.by_value == row.sites]
    failures = [f"{site}: {reason}" for site, reason in (own.failures or {}).items()]
    unread = [f"{own.unread} unread: {own.unread_reason}"] if own.unread else []
    reason = own.reason if not own.built or not own.unread else ""
    weaker = [f"{own.passed - own.by_value} by gauge moves alone"] if own.passed > own.by_value else []
    detail = "; ".join(filter(None, [*failures[:1], *weaker, *unread, reason]))
    return Line(
        model_type=name,
        outcome=_outcome(own),
        sites=own.sites,
        proved=own.by_value,
        variants=len(whole),
        tried=len(built),
        error=max((row.largest_error for row in whole), default=own.largest_error),
        detail=detail if len(detail) <= _LONGEST else f"{detail[: _LONGEST - 1]}…",
    )


def _outcome(own: Row) -> str:
    if not own.built:
        return "not built"
    if not own.sites:
        return "unread" if own.unread else "no attention"
    if not own.by_value:
        return "gauge only" if own.passed else "none"
    return "all by value" if own.by_value == own.sites else "some by value"


def _cells(line: Line) -> tuple[str, ...]:
    return (
        line.model_type,
        line.outcome,
        f"{line.proved}/{line.sites}" if line.sites else "",
        f"{line.variants}/{line.tried}" if line.tried else "",
        f"{line.error:.0e}" if line.proved else "",
        line.detail,
    )
