"""The change between two checkpoints in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rankwise.scans.table import Columns, average, cells, measured, summary
from rankwise.text import printable


def change_table(record: Mapping[str, Any], *, rows: int) -> RenderableType:
    """A row for the change of each product, and one for each matrix with the ranks that a LoRA of it needs."""
    changed = [matrix for matrix in record["matrices"] if matrix["ranks"] is not None]
    still = len(record["matrices"]) - len(changed)
    parts: list[RenderableType] = [
        Text(f"from {printable(record['base'])} to {printable(record['source'])}", style="bold"),
        cells("change of products; mean over heads", record["sites"], PRODUCTS, rows),
        cells("change of matrices; rank for a share of the energy", changed, MATRICES, rows),
    ]
    if still:
        parts.append(Text(f"{still} matrices did not change, or by less than rounding."))
    return Group(*parts, summary(record))


def _change(side: str) -> Any:
    def cell(site: Mapping[str, Any]) -> str:
        own = average((head["change"][side] for head in site["heads"]), "{:.0%}")
        chance = average((head["change"][f"{side}_chance"] for head in site["heads"]), "{:.0%}")
        return f"{own}/{chance}"

    return cell


def _relative(site: Mapping[str, Any]) -> str:
    return average((head["change"]["relative"] for head in site["heads"]), "{:.2%}")


def _rank(share: str) -> Any:
    def cell(matrix: Mapping[str, Any]) -> str:
        rank = matrix["ranks"][share]
        return f">{len(matrix['values'])}" if rank is None else str(rank)

    return cell


def _sites(matrix: Mapping[str, Any]) -> Iterator[str]:
    return (printable(name) for name in matrix["sites"])


PRODUCTS: Columns = (
    ("site", lambda site: printable(site["name"])),
    ("heads", lambda site: f"{len(site['heads'])}x{min(site['widths'])}"),
    ("change", _relative),
    ("s_1", lambda site: average(measured(site, "operator_norm"))),
    ("stable rank", lambda site: average(measured(site, "stable_rank"))),
    ("95 % energy", lambda site: average(measured(site, "energy_rank"))),
    ("left/ chance", _change("left")),
    ("right/ chance", _change("right")),
)
MATRICES: Columns = (
    ("matrix", lambda matrix: printable(matrix["parameter"].removesuffix(".weight"))),
    ("shape", lambda matrix: "x".join(map(str, matrix["shape"]))),
    ("change", lambda matrix: "-" if matrix["relative"] is None else f"{matrix['relative']:.2%}"),
    ("90 %", _rank("90%")),
    ("95 %", _rank("95%")),
    ("99 %", _rank("99%")),
    ("in", lambda matrix: " ".join(_sites(matrix))),
)
