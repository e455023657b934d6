"""Which heatmaps a scan fills: layer by head for attention, layer by matrix for everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rankwise.report.record import ATTENTION, Record
from rankwise.text import printable

TITLES = {
    "qk": "QK: where heads look",
    "ov": "OV: what heads write",
    "lora": "adapters",
    "linear": "factorized layers",
    "conv": "convolutions",
    "mlp": "matrices",
    "embed": "embeddings",
    "matrix": "matrices",
}


@dataclass(frozen=True)
class HeatMap:
    """A grid of heads: its labels, and which site and head each cell shows.

    Arguments:
        title: what its cells are.
        kind: the kind of its sites.
        part: the part of the model, where it has several (`decoder cross`).
        column_name: what one column is: a head, an expert, a matrix.
        rows, columns: the labels; rows are layers.
        cells: `(row, column, site, head)` as positions; a place that is not listed does not exist in the model.
    """

    title: str
    kind: str = field(kw_only=True)
    part: str = field(kw_only=True)
    column_name: str = field(kw_only=True)
    rows: tuple[str, ...] = field(kw_only=True)
    columns: tuple[str, ...] = field(kw_only=True)
    cells: tuple[tuple[int, int, int, int], ...] = field(kw_only=True, repr=False)


@dataclass(frozen=True)
class _Place:
    """Where a site belongs: the map, and its column in it, or None when its heads are the columns."""

    kind: str
    part: str
    column: str | None


def heat_maps(sites: Sequence[Record]) -> tuple[HeatMap, ...]:
    """The heatmaps of a scan: attention first, QK beside OV for each part of the model, then the single matrices."""
    gathered: dict[tuple[str, str, bool], list[tuple[int, _Place]]] = {}
    for index, site in enumerate(sites):
        place = _place(site)
        if place is not None:
            gathered.setdefault((place.part, place.kind, place.column is None), []).append((index, place))
    first_seen = {part: order for order, part in reversed(list(enumerate(part for part, _, _ in gathered)))}

    def order(key: tuple[str, str, bool]) -> tuple[bool, int, int]:
        part, kind, _ = key
        return kind not in ATTENTION, first_seen[part], ATTENTION.index(kind) if kind in ATTENTION else 0

    return tuple(_map(sites, gathered[key]) for key in sorted(gathered, key=order))


def _place(site: Record) -> _Place | None:
    kind, layer = str(site["kind"]), site.get("layer")
    parts = str(site["name"]).removesuffix(f".{kind}").split(".")
    position = parts.index(str(layer)) if layer is not None and str(layer) in parts else None
    if kind in ATTENTION:
        named = [part for place, part in enumerate(parts) if place != position and part != "layers"]
        # The bare grammar "layers.3.qk" names no part; anything that is left over tells one from another.
        return _Place(kind, part=" ".join(named), column=None)
    if len(site["heads"]) > 1:
        return _Place(kind, part=".".join(part for place, part in enumerate(parts) if place != position), column=None)
    if position is None:
        return None
    return _Place(kind, part=".".join(parts[:position]), column=".".join(parts[position + 1 :]) or kind)


def _map(sites: Sequence[Record], members: Sequence[tuple[int, _Place]]) -> HeatMap:
    kind, part = members[0][1].kind, members[0][1].part
    layers = sorted({sites[index].get("layer") for index, _ in members}, key=lambda layer: (layer is None, layer or 0))
    roles = list(dict.fromkeys(place.column for _, place in members if place.column is not None))
    cells = []
    for index, place in members:
        row = layers.index(sites[index].get("layer"))
        if place.column is not None:
            cells.append((row, roles.index(place.column), index, 0))
        else:
            cells += [(row, column, index, column) for column in range(len(sites[index]["heads"]))]
    count = 1 + max((column for _, column, _, _ in cells), default=0)
    batch = sites[members[0][0]].get("batch") or [["head", count]]
    return HeatMap(
        TITLES.get(kind, printable(kind)),
        kind=printable(kind),
        part=printable(part) if kind in ATTENTION else printable(part, limit=60),
        column_name="matrix" if roles else ("head" if kind in ATTENTION else printable(batch[0][0])),
        rows=tuple("none" if layer is None else str(layer) for layer in layers),
        columns=tuple(printable(role, limit=40) for role in roles) or tuple(map(str, range(count))),
        cells=tuple(cells),
    )
