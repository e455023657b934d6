"""The change between two checkpoints: of every product, and of every single matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankwise.errors import UserError
from rankwise.product.product import Product
from rankwise.product.randomized import Projected, project
from rankwise.scans.align import Renamed, common_names
from rankwise.scans.assess import describe, head_records
from rankwise.scans.numbers import bound, bounds, number, numbers
from rankwise.scans.scan import Progress, Scan
from rankwise.scans.settings import Settings
from rankwise.sites.checkpoints import open_checkpoint
from rankwise.sites.find import find
from rankwise.sites.registry import known_layouts
from rankwise.sites.singles import is_matrix
from rankwise.sites.site import Site
from rankwise.sites.sites import Sites, Unread
from rankwise.sites.source import shapes_of, tensor_of
from rankwise.text import printable

if TYPE_CHECKING:
    from rankwise.scans.lora import Extraction

# The leading directions whose overlap with the base's is reported, and those of a large matrix that are looked for.
ALIGNED = 8
LOOKED_FOR = 256
# A matrix of at most this many singular values is decomposed whole.
WHOLE = 1024
ENERGIES = (0.90, 0.95, 0.99)


class Diff(Scan):
    """The change from a base to a tuned model; the same record as a scan's, over the differences.

    Every head also has `change`: its norm relative to the base's, and how far its leading directions overlap with the
    base's. `matrices` holds, for each single matrix, the rank that a LoRA needs for 90, 95 and 99 % of its change.
    """

    def __init__(
        self, source: str, base: str, *, tensors: Any, start: Renamed, sites: Sites, settings: Settings,
        config: Mapping[str, Any] | None, notes: tuple[str, ...],
    ) -> None:  # fmt: skip
        super().__init__(source, tensors=tensors, sites=sites, settings=settings, config=config, notes=notes)
        self.base = base
        self.start = start

    def matrices(self) -> dict[str, tuple[int, ...]]:
        """Every two-dimensional matrix that both models have, by name, with its shape."""
        shapes = shapes_of(self._tensors)
        known = {*self.start}
        return {name: shape for name, shape in shapes.items() if name in known and len(shape) == 2 and is_matrix(shape)}

    def change_of(self, name: str) -> Product:
        """The change of a single matrix."""
        return Product(self.tensor(name)) - Product(self.start[name])

    def base_name(self, name: str) -> str:
        """What the base calls a tensor of the tuned model: an adapter is loaded onto the base."""
        return self.start.names[name]

    def tensor(self, name: str) -> Tensor:
        """A tensor of the tuned model."""
        return tensor_of(self._tensors, name)[0].detach()

    def input_first(self, name: str) -> bool:
        """Whether a linear layer's weight is stored input first, the transpose of `nn.Linear`."""
        used = {site.layout for site in self.sites}
        return not name.endswith("lm_head.weight") and any(
            layout.input_first for layout in known_layouts() if layout.name in used
        )

    def extract_lora(
        self,
        folder: str | Path,
        *,
        rank: int | None = None,
        energy: float | None = None,
        bytes: int | str | None = None,
    ) -> Extraction:
        """Write the change as a PEFT adapter of a rank, an energy, or a number of bytes; see `extract_lora`."""
        from rankwise.scans.lora import extract_lora

        return extract_lora(self, folder, rank=rank, energy=energy, size=bytes)

    def run(self, *, progress: Progress | None = None, resume: bool = False, journal: bool = False) -> dict[str, Any]:
        record = super().run(progress=progress, resume=resume, journal=journal)
        record["base"] = self.base
        record["matrices"] = [self._matrix(name, shape) for name, shape in self.matrices().items()]
        return record

    def assess(self, site: Site, source: Any) -> dict[str, Any]:
        """The record of a site's change."""
        after, before = site.product(source).detach(), site.product(self.start).detach()
        change = after - before
        if self.settings.device is not None:
            change, before = change.to(self.settings.device), before.to(self.settings.device)
        spectrum = change.spectrum(self.settings.method, self.settings.tolerance)
        heads = head_records(spectrum, self.settings.measures)
        assert change.start is not None
        size = change.start.norm.expand(change.batch_shape).flatten().tolist()
        overlaps = _alignment(change, before)
        for position, head in enumerate(heads):
            norm = head["measures"].get("frobenius_norm", [None])[0]
            relative = None if norm is None or not size[position] else number(norm / size[position])
            overlap = {side: number(values[position].item()) for side, values in overlaps.items()}
            head |= {"null_scale": None, "verdicts": None, "balance": None, "pairs": None}
            head["change"] = {"relative": relative, **overlap}
            heads[position] = head
        return describe(site, change) | {"heads": heads, "group": None, "null": None}

    def _matrix(self, name: str, shape: tuple[int, ...]) -> dict[str, Any]:
        change = self.change_of(name)
        sites = [site.name for site in self.sites if name in site.parameters]
        record: dict[str, Any] = {"parameter": name, "shape": list(shape), "sites": sites}
        assert change.start is not None
        size = change.start.norm.item()
        moved = torch.linalg.matrix_norm(change.left.double()).item()
        if not moved > change.start.floor * size:
            reason = "unchanged" if moved == 0 else "the change is not finite, or below the rounding of the start"
            return record | {"relative": number(moved / size) if size else None, "ranks": None, "reason": reason}
        found = project(change, min(shape) if min(shape) <= WHOLE else min(LOOKED_FOR, min(shape)))
        return record | {
            "relative": number(moved / size) if size else None,
            "norm": number(moved),
            "values": numbers(found.values[:LOOKED_FOR]),
            "errors": bounds(found.residual[:LOOKED_FOR]),
            "ranks": {f"{share:.0%}": energy_rank(found, share) for share in ENERGIES},
            "missed": [bound(found.missed(rank)) for rank in _grid(len(found.values))],
            "missed_at": _grid(len(found.values)),
            "reason": None,
        }


def diff(
    base: str | Path | nn.Module | Mapping[str, Tensor],
    tuned: str | Path | nn.Module | Mapping[str, Tensor],
    *,
    config: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
) -> Diff:
    """The change of every product and every matrix from one checkpoint to another.

    Arguments:
        base, tuned: two checkpoints or models of one architecture; one may carry a prefix in its names.
        config: the configuration of both, where neither brings it.
        settings: how to compute, in place of the defaults.
    """
    settings = settings or Settings()
    opened = [open_checkpoint(each) if isinstance(each, str | Path) else each for each in (base, tuned)]
    labels = [str(each) if isinstance(each, str | Path) else type(each).__name__ for each in (base, tuned)]
    notes = tuple(dict.fromkeys(note for each in opened for note in getattr(each, "notes", ())))
    start = _mapping(opened[0])
    names, note = common_names(list(shapes_of(opened[0])), list(shapes_of(opened[1])))
    back = {two: one for one, two in names.items()}
    base_shapes, tuned_shapes = (shapes_of(each) for each in opened)
    for one, two in names.items():
        if base_shapes[one] != tuned_shapes[two]:
            raise UserError(
                f"'{printable(one)}' has shape {base_shapes[one]} in the base and {tuned_shapes[two]} in the tuned "
                "model: they are not one architecture"
            )
    found = find(opened[1], config=config if config is not None else getattr(opened[0], "config", None))
    missing = [
        Unread(name, tuned_shapes[name], "the base has no such tensor")
        for name in tuned_shapes
        if name not in back and is_matrix(tuned_shapes[name])
    ]
    sites = found.select(where=lambda site: all(name in back for name in site.parameters) and len(site.factors) > 1)
    sites = Sites(sites, unread=[*found.unread, *missing], tied=found.tied, source=opened[1])
    return Diff(
        labels[1],
        labels[0],
        tensors=opened[1],
        start=Renamed(start, back),
        sites=settings.selection(sites),
        settings=replace(settings, spectra=frozenset({site.kind for site in sites})),
        config=getattr(opened[1], "config", None) or getattr(opened[0], "config", None),
        notes=(*notes, *([note] if note else [])),
    )


def energy_rank(found: Projected, share: float) -> int | None:
    """The least rank that keeps a share of the energy; None where more triplets than were looked for are needed."""
    kept = found.values.double().square().cumsum(0)
    reached = (kept >= share * found.energy * (1 - 1e-12)).nonzero()
    return int(reached[0].item()) + 1 if len(reached) else None


def _alignment(change: Product, before: Product) -> dict[str, Tensor]:
    """The share of the change's leading directions that lies in the base's leading space, and what chance would give.

    `|U_k^T V_k|_F^2 / k` for the `k` leading vectors of both, left and right; random directions overlap by `k / width`.
    """
    k = min(ALIGNED, change.max_rank, before.max_rank)
    moved, stood = change.svd(k), before.svd(k)
    sides = {"left": (moved.left, stood.left), "right": (moved.right, stood.right)}
    overlaps = {side: (one.mT @ two).square().sum((-2, -1)).flatten() / k for side, (one, two) in sides.items()}
    chance = {f"{side}_chance": torch.full_like(overlaps[side], k / one.shape[-2]) for side, (one, _) in sides.items()}
    return {**overlaps, **chance}


def _grid(count: int) -> list[int]:
    """Ranks at which the error of a truncation is recorded: powers of two."""
    return [rank for rank in (1, 2, 4, 8, 16, 32, 64, 128, 256) if rank <= count]


def _mapping(source: Any) -> Mapping[str, Tensor]:
    return dict(source.named_parameters()) if isinstance(source, nn.Module) else source
