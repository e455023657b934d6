"""The change between two checkpoints: of every product, and of every single matrix."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from rankwise.errors import CheckpointError, UserError
from rankwise.numbers import number
from rankwise.product.product import Product
from rankwise.product.spectrum import UNCHANGED
from rankwise.scans.align import Renamed, common_names
from rankwise.scans.alignment import alignment
from rankwise.scans.assess import head_records
from rankwise.scans.matrices import matrix_record
from rankwise.scans.scan import Scan, Step
from rankwise.scans.settings import Settings
from rankwise.scans.wide import Wide
from rankwise.sites.checkpoints import Checkpoint, open_checkpoint
from rankwise.sites.find import find
from rankwise.sites.record import describe
from rankwise.sites.registry import known_layouts
from rankwise.sites.singles import is_matrix
from rankwise.sites.site import Site
from rankwise.sites.sites import Sites, Unread
from rankwise.sites.source import shapes_of, tensor_of
from rankwise.text import printable

if TYPE_CHECKING:
    from rankwise.scans.lora import Extraction

_IN_A_LAYER = re.compile(r"(^|\.)\d+\.")


@dataclass(frozen=True, kw_only=True)
class Matched:
    """What two models have in common.

    Arguments:
        tensors: the tuned model.
        start: the base, under the tuned model's names.
        opened: both, as they were opened.
        matrices: the two-dimensional matrices of both, by the tuned model's name, with their shape.
        kinds: of each matrix the kind of the site that reads it alone.
        scalings: of each site what the base multiplies its product by.
    """

    tensors: Any
    start: Renamed
    opened: Sequence[Any]
    matrices: Mapping[str, tuple[int, ...]]
    kinds: Mapping[str, str]
    scalings: Mapping[str, float] = field(default_factory=dict)


class Diff(Scan):
    """The change from a base to a tuned model; the same record as a scan's, over the differences.

    Every head also has `change`: its norm relative to the base's, and how far its leading directions overlap with the
    base's. `matrices` holds, for each single matrix, the rank that a LoRA needs for 90, 95 and 99 % of its change.
    """

    def __init__(
        self,
        source: str,
        base: str,
        *,
        matched: Matched,
        sites: Sites,
        settings: Settings,
        config: Mapping[str, Any] | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(source, tensors=matched.tensors, sites=sites, settings=settings, config=config, notes=notes)
        self.base = base
        self.matched = matched

    @property
    def matrices(self) -> Mapping[str, tuple[int, ...]]:
        """Every two-dimensional matrix that both models have and the selection allows, by name, with its shape."""
        return self.matched.matrices

    @property
    def size(self) -> int:
        return len(self.sites) + len(self.matrices)

    @property
    def names(self) -> list[str]:
        """Every tensor of the tuned model."""
        return list(shapes_of(self._tensors))

    def change_of(self, name: str) -> Product:
        """The change of a single matrix."""
        return Product(self.tensor(name)) - Product(self.matched.start[name].detach())

    def base_name(self, name: str) -> str:
        """What the base calls a tensor of the tuned model: an adapter is loaded onto the base."""
        return self.matched.start.names[name]

    def tensor(self, name: str) -> Tensor:
        """A tensor of the tuned model."""
        return tensor_of(self._tensors, name)[0].detach()

    def input_first(self, name: str) -> bool:
        """Whether a linear layer's weight is stored input first, the transpose of `nn.Linear`.

        The architectures that do so do it in their layers; a head on top of them is an ordinary linear layer.
        """
        used = {site.layout for site in self.sites}
        return _IN_A_LAYER.search(name) is not None and any(
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
        """Write the change as a PEFT adapter of a rank, an energy, or a number of bytes; see `rw.extract_lora`."""
        from rankwise.scans.lora import extract_lora

        return extract_lora(self, folder, rank=rank, energy=energy, size=bytes)

    def assess(self, site: Site, source: Any) -> dict[str, Any]:
        """The record of a site's change."""
        after, before = (
            self._scaled(site, source, site.scaling),
            self._scaled(site, self.matched.start, self.matched.scalings.get(site.name, site.scaling)),
        )
        change = after - before
        if self.settings.device is not None:
            change, before = change.to(self.settings.device), before.to(self.settings.device)
        spectrum = change.spectrum(self.settings.method, self.settings.tolerance)
        heads = head_records(spectrum, self.settings.measures)
        assert change.start is not None
        size = change.start.norm.expand(change.batch_shape).flatten().tolist()
        moved = spectrum.values.double().square().sum(-1).sqrt().flatten().tolist()
        overlaps = alignment(change, before)
        for position, head in enumerate(heads):
            share = moved[position] / size[position] if size[position] else float("nan")
            share = 0.0 if head["failure"] == UNCHANGED else share
            # What did not move has no directions.
            overlap = overlaps[position] if head["failure"] is None else dict.fromkeys(overlaps[position])
            head |= {"null_scale": None, "verdicts": None, "balance": None, "pairs": None}
            head["change"] = {"relative": number(share), **overlap}
        return describe(site, change.widths) | {"heads": heads, "group": None, "null": None}

    def _scaled(self, site: Site, source: Any, scaling: float) -> Product:
        product = site.product(source) if scaling == 1.0 else site.product(Wide(source)) * scaling
        return product.detach()

    def _checkpoints(self) -> list[Checkpoint]:
        opened = [each for each in self.matched.opened if isinstance(each, Checkpoint)]
        return opened if len(opened) == len(self.matched.opened) else []

    def _steps(self, reader: Any, done: Collection[str]) -> list[Step]:
        steps = super()._steps(reader, done)
        entries = getattr(self._tensors, "entries", {})
        for name, shape in self.matrices.items():
            if (key := _key(name)) not in done:
                cost = 2 * entries[name].bytes if name in entries else 1
                compute = partial(self._of_matrix, name, shape)
                steps.append(Step(key=key, name=name, cost=cost, compute=compute))
        return steps

    def _of_matrix(self, name: str, shape: tuple[int, ...]) -> dict[str, Any]:
        sites = [site.name for site in self.sites if name in site.parameters]
        record: dict[str, Any] = {"parameter": name, "shape": list(shape), "sites": sites}
        try:
            change = self.change_of(name)
            return record | matrix_record(change if self.settings.device is None else change.to(self.settings.device))
        except CheckpointError:
            raise
        except UserError as error:
            return {"refused": str(error), "parameters": [name]}

    def _whole(self, found: Mapping[str, dict[str, Any]], *, complete: bool) -> dict[str, Any]:
        record = super()._whole(found, complete=complete)
        done = [found[_key(name)] for name in self.matrices if _key(name) in found]
        record["matrices"] = [each for each in done if "refused" not in each]
        record["unread"] += [
            {"parameter": each["parameters"][0], "shape": [], "reason": each["refused"]}
            for each in done
            if "refused" in each
        ]
        return record


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
    configs = [getattr(each, "config", None) for each in opened]
    notes = tuple(dict.fromkeys(note for each in opened for note in getattr(each, "notes", ())))
    base_shapes, tuned_shapes = (shapes_of(each) for each in opened)
    _check_adapters(opened, labels)
    names, note = common_names(list(base_shapes), list(tuned_shapes))
    back = {two: one for one, two in names.items() if base_shapes[one] == tuned_shapes[two]}
    unread = _unread(base_shapes, tuned_shapes, names)
    known = config if config is not None else configs[1] if configs[1] is not None else configs[0]
    found = find(opened[1], config=known)
    shared = found.select(where=lambda site: all(name in back for name in site.parameters))
    chosen = settings.selection(shared)
    products = chosen.select(where=lambda site: len(site.factors) > 1)
    wanted = chosen.covered if str(settings.selection) else back.keys()
    matrices = {
        name: shape for name, shape in tuned_shapes.items() if name in wanted and len(shape) == 2 and is_matrix(shape)
    }
    deeper = [
        Unread(name, shape, "a stack of matrices or kernels: the change of two-dimensional ones alone is decomposed")
        for name, shape in tuned_shapes.items()
        if name in wanted and len(shape) > 2 and is_matrix(shape) and name not in products.covered
    ]
    singles = {site.parameters[0]: site.kind for site in found if len(site.factors) == 1}
    matched = Matched(
        tensors=opened[1],
        start=Renamed(_mapping(opened[0]), back),
        opened=opened,
        matrices=matrices,
        kinds={name: singles.get(name, "attention") for name in matrices},
        scalings={site.name: site.scaling for site in find(opened[0], config=known) if site.kind == "lora"},
    )
    return Diff(
        labels[1],
        labels[0],
        matched=matched,
        sites=Sites(products, unread=[*found.unread, *unread, *deeper], tied=found.tied, source=opened[1]),
        settings=replace(settings, spectra=frozenset({site.kind for site in products})),
        config=getattr(known, "to_dict", lambda: known)(),
        notes=(*notes, *([note] if note else [])),
    )


def _unread(
    base: Mapping[str, tuple[int, ...]], tuned: Mapping[str, tuple[int, ...]], names: Mapping[str, str]
) -> list[Unread]:
    """The matrices that one of the two lacks or has in another shape; an error where hardly any agree."""
    matrices = {one: two for one, two in names.items() if is_matrix(base[one]) or is_matrix(tuned[two])}
    resized = {one: two for one, two in matrices.items() if base[one] != tuned[two]}
    if resized and 2 * len(resized) > len(matrices):
        one, two = next(iter(resized.items()))
        raise UserError(
            f"'{printable(one)}' has shape {base[one]} in the base and {tuned[two]} in the tuned model, as have "
            f"{len(resized)} of {len(matrices)} matrices: they are not one architecture"
        )
    matched = set(names.values())
    return [
        *(
            Unread(two, tuned[two], f"its shape is {list(base[one])} in the base and {list(tuned[two])} here")
            for one, two in resized.items()
        ),
        *(
            Unread(name, shape, "the base has no such tensor")
            for name, shape in tuned.items()
            if name not in matched and is_matrix(shape)
        ),
        *(
            Unread(name, shape, "only the base has this tensor")
            for name, shape in base.items()
            if name not in names and is_matrix(shape)
        ),
    ]


def _check_adapters(opened: Sequence[Any], labels: Sequence[str]) -> None:
    """An adapter holds no weights of a model, so that a model and an adapter have nothing to compare."""
    adapters = [getattr(each, "adapter", None) is not None for each in opened]
    if adapters[0] != adapters[1]:
        label = printable(labels[adapters.index(True)])
        raise UserError(
            f"{label} is an adapter, which holds the change alone: scan it (rankwise scan {label}), or merge it into "
            "its base and compare that"
        )


def _key(name: str) -> str:
    """What a matrix's record is kept under: no site is called so."""
    return f"matrix {name}"


def _mapping(source: Any) -> Mapping[str, Tensor]:
    return dict(source.named_parameters()) if isinstance(source, nn.Module) else source
