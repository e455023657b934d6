"""A series of checkpoints in the terminal: a row for each step, the means over all heads of a kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from rankwise.scans.table import Columns, average, cells, count, law, legend, measured

KINDS = ("qk", "ov", "lora", "linear", "conv")
LEGEND = (
    "Means over all heads of a kind. s_1: the largest singular value; rank: the effective rank; gap: by how much the "
    "half-sum of the factors exceeds the nuclear norm. stands out: how many findings, most telling first; those of the "
    "last step follow."
)


def series_table(records: Sequence[Mapping[str, Any]], *, rows: int) -> RenderableType:
    """A row for each checkpoint, in the order of training."""
    if not rows:
        return Group()
    present = [kind for kind in KINDS if any(site["kind"] == kind for record in records for site in record["sites"])]
    columns: Columns = (
        ("step", lambda record: str(record["step"])),
        *(column for kind in present for column in _columns(kind)),
        ("stands out", _findings),
    )
    return Group(cells(f"a series of {count(len(records), 'checkpoint')}", records, columns, rows), legend(LEGEND))


def _columns(kind: str) -> Columns:
    def sites(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        return (site for site in record["sites"] if site["kind"] == kind)

    def mean(name: str) -> Callable[[Any], str]:
        return lambda record: average(value for site in sites(record) for value in measured(site, name))

    def gap(record: Mapping[str, Any]) -> str:
        return average((value for site in sites(record) for value in law(site)), "{:.1%}")

    return ((f"{kind} s_1", mean("operator_norm")), (f"{kind} rank", mean("effective_rank")), (f"{kind} gap", gap))


def _findings(record: Mapping[str, Any]) -> str:
    kinds = Counter(finding["kind"] for finding in record["findings"])
    return ", ".join(f"{number} {kind}" for kind, number in kinds.items()) or "-"
