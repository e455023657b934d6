"""The change between two checkpoints in the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from rankwise.scans.table import (
    Columns,
    average,
    cells,
    count,
    interrupted,
    legend,
    measured,
    method_lines,
    unread_lines,
)
from rankwise.text import printable

SHARES = ("90%", "95%", "99%")


def change_table(record: Mapping[str, Any], *, rows: int) -> RenderableType:
    """A row for the change of each product, one for each matrix with the ranks that a LoRA needs, and the gist."""
    products = [site for site in record["sites"] if any(head["failure"] is None for head in site["heads"])]
    changed = [matrix for matrix in record["matrices"] if matrix["ranks"] is not None]
    parts: list[RenderableType] = [
        Text(f"from {printable(record['base'])} to {printable(record['source'])}", style="bold")
    ]
    if products and rows:
        title = f"change of {count(len(products), 'site')}; mean over heads"
        parts += [cells(title, products, PRODUCTS, rows), legend(_product_legend(products))]
    if changed and rows:
        title = f"change of {count(len(changed), 'single matrix', 'single matrices')}"
        beside = {site["name"]: average(measured(site, "energy_rank")) for site in products}
        shown = [{**matrix, "beside": _beside(matrix, beside)} for matrix in changed]
        parts += [cells(title, shown, MATRICES, rows), legend(MATRIX_LEGEND)]
    return Group(
        *parts, *unread_lines(record), *method_lines(record), *_gist(record, products, changed), *interrupted(record)
    )


def _gist(
    record: Mapping[str, Any], products: Sequence[Mapping[str, Any]], changed: Sequence[Mapping[str, Any]]
) -> Iterator[RenderableType]:
    """What there is to say of the change as a whole."""
    yield Text("")
    yield Text("What stands out", style="bold")
    yield from (Padding(Text(line), (0, 0, 0, 2)) for line in gist(record, products, changed))


def gist(
    record: Mapping[str, Any], products: Sequence[Mapping[str, Any]], changed: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """The change as a whole in plain words with the evidence, a line at a time.

    Arguments:
        record: of a diff.
        products: the sites in it of which some head changed.
        changed: the matrices in it that changed.
    """
    if not products and not changed and record["complete"]:
        yield "Nothing changed."
    moved = {site["name"]: each for site in products if (each := _mean(site, _relative)) is not None}
    if moved:
        most, least = max(moved, key=moved.__getitem__), min(moved, key=moved.__getitem__)
        yield (
            f"Products moved by {moved[least]:.3g} ({printable(least)}) to {moved[most]:.3g} ({printable(most)}) of "
            "their norm in the base."
        )
    ranks = {site["name"]: each for site in products if (each := _mean(site, _stable_rank)) is not None}
    if ranks:
        lowest = min(ranks, key=ranks.__getitem__)
        width = next(min(site["widths"]) for site in products if site["name"] == lowest)
        yield (
            f"The change of lowest rank is that of {printable(lowest)}: stable rank {ranks[lowest]:.3g} of {width} "
            f"possible; the median over sites is {median(ranks.values()):.3g}."
        )
    for share in ("90%", "99%"):
        yield from _lora_line(changed, share)
    still = Counter(matrix["reason"] for matrix in record["matrices"] if matrix["ranks"] is None)
    for reason, number in still.items():
        yield f"{number} of {count(len(record['matrices']), 'matrix', 'matrices')}: {printable(reason)}."
    failed = Counter(
        head["failure"] for site in record["sites"] for head in site["heads"] if head["failure"] is not None
    )
    heads = sum(len(site["heads"]) for site in record["sites"])
    for reason, number in failed.items():
        yield f"{number} of {count(heads, 'product')}: {printable(reason)}."


def _lora_line(changed: Sequence[Mapping[str, Any]], share: str) -> Iterator[str]:
    ranks = {matrix["parameter"]: inf if (rank := matrix["ranks"][share]) is None else rank for matrix in changed}
    if not ranks:
        return
    # Of a matrix that needs more triplets than were looked for, only that is known.
    most = max(ranks, key=ranks.__getitem__)
    looked = max(len(matrix["values"]) for matrix in changed)
    middle, last = (
        f"more than {looked}" if rank == inf else f"{rank:.4g}" for rank in (median(ranks.values()), ranks[most])
    )
    yield (
        f"For {share} of the energy a LoRA needs rank {middle} in the median over matrices, and {last} for "
        f"{printable(most)}."
    )


def _beside(matrix: Mapping[str, Any], ranks: Mapping[str, str]) -> list[str]:
    """The products of a matrix, each with the rank of its own change."""
    return [f"{printable(name)} {ranks[name]}" for name in matrix["sites"] if name in ranks]


def _relative(head: Mapping[str, Any]) -> float | None:
    return head["change"]["relative"]


def _stable_rank(head: Mapping[str, Any]) -> float | None:
    return head["measures"].get("stable_rank", [None])[0]


def _mean(site: Mapping[str, Any], value: Any) -> float | None:
    known = [each for head in site["heads"] if (each := value(head)) is not None]
    return sum(known) / len(known) if known else None


def _change(side: str) -> Any:
    return lambda site: average((head["change"][side] for head in site["heads"]), "{:.0%}")


def _rank(share: str) -> Any:
    def cell(matrix: Mapping[str, Any]) -> str:
        rank = matrix["ranks"][share]
        return f">{len(matrix['values'])}" if rank is None else str(rank)

    return cell


def _product_legend(products: Sequence[Mapping[str, Any]]) -> str:
    chances = [head["change"]["left_chance"] for site in products for head in site["heads"]]
    chance = f"{min(chances):.1%}" if max(chances) == min(chances) else f"{min(chances):.1%} to {max(chances):.1%}"
    return (
        "change: its norm over the norm of the base's product. s_1: its largest singular value. 95 % rank: how many "
        "directions hold 95 % of its energy. left, right: how much of the space of its 8 leading directions lies in "
        f"that of the base's; random ones would have {chance}."
    )


PRODUCTS: Columns = (
    ("site", lambda site: printable(site["name"])),
    ("heads", lambda site: f"{len(site['heads'])}x{min(site['widths'])}"),
    ("change", lambda site: average((_relative(head) for head in site["heads"]), "{:.2%}")),
    ("s_1", lambda site: average(measured(site, "operator_norm"))),
    ("stable rank", lambda site: average(measured(site, "stable_rank"))),
    ("95 % rank", lambda site: average(measured(site, "energy_rank"))),
    ("left", _change("left")),
    ("right", _change("right")),
)
MATRICES: Columns = (
    ("matrix", lambda matrix: printable(matrix["parameter"].removesuffix(".weight"))),
    ("shape", lambda matrix: "x".join(map(str, matrix["shape"]))),
    ("change", lambda matrix: "-" if matrix["relative"] is None else f"{matrix['relative']:.2%}"),
    *((f"{share[:-1]} %", _rank(share)) for share in SHARES),
    ("in, at 95 %", lambda matrix: ", ".join(matrix["beside"])),
)
MATRIX_LEGEND = (
    "90 %, 95 %, 99 %: the rank that a LoRA of this matrix needs to hold this share of its change's energy. in: the "
    "products that it is a factor of, and the rank that the change of each needs for 95 %."
)
