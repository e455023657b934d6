"""Who reads which part of which parameter of a model: what two of them read is neither's to move."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import takewhile

import torch
from torch import Tensor, nn

from rankwise.layers.gauges import NoGauge
from rankwise.sites.factor import Factor
from rankwise.sites.site import Site
from rankwise.sites.sites import Sites


class Readers:
    """All readings of a model's parameters by its sites, and all names that a parameter has.

    Arguments:
        model: the live model.
        tensors: its parameters under all of their names.
        sites: all of its sites.
    """

    def __init__(self, model: nn.Module, tensors: Mapping[str, Tensor], sites: Sites) -> None:
        self.model, self.tensors = model, tensors
        self._names: dict[tuple[int, torch.Size], list[str]] = defaultdict(list)
        for name, tensor in tensors.items():
            self._names[tensor.data_ptr(), tensor.shape].append(name)
        self._paths: dict[int, list[str]] = defaultdict(list)
        for path, module in model.named_modules(remove_duplicate=False):
            self._paths[id(module)].append(path)
        self._readings: dict[str, list[tuple[str, Factor]]] = defaultdict(list)
        for site in sites:
            for factor in (*site.factors, *(each for at in range(len(site.factors)) for each in site.added(at))):
                self._readings[self._first(factor.parameter)].append((site.name, factor))

    def refuse(self, site: Site, factors: Iterable[Factor]) -> None:
        """Say why a site's factors are not its own, or nothing where they are."""
        unit = self._unit(site)
        for factor in factors:
            self.refuse_aliases(unit, factor.parameter)
            self._refuse_overlap(site, factor)

    def refuse_aliases(self, unit: str, name: str) -> None:
        """Say that a parameter is used outside a module too; where the module itself stands twice, that is no harm."""
        inside = name.removeprefix(f"{unit}." if unit else "")
        paths = self._paths[id(self.model.get_submodule(unit))]
        own = {f"{path}.{inside}" if path else inside for path in paths}
        elsewhere = [alias for alias in self._aliases(name) if alias not in own]
        if elsewhere:
            raise NoGauge(f"'{name}' is '{elsewhere[0]}' as well: a move would change what that one does")

    def _refuse_overlap(self, site: Site, factor: Factor) -> None:
        readings = self._readings[self._first(factor.parameter)]
        if len(readings) == 1:
            return
        count = torch.zeros(self.tensors[factor.parameter].shape, dtype=torch.int16)
        for _, each in readings:
            each.view(count).add_(1)
        if bool((factor.view(count) > 1).any()):
            others = sorted({name for name, _ in readings} - {site.name}) or [f"{site.name}, twice"]
            raise NoGauge(f"'{factor.parameter}' is read by another product too: {', '.join(others)}")

    def _unit(self, site: Site) -> str:
        """The module within which everything that a site reads belongs together."""
        if site.attention is not None:
            return site.attention.module
        components = zip(*(name.split(".")[:-1] for name in site.parameters), strict=False)
        return ".".join(each[0] for each in takewhile(lambda each: len(set(each)) == 1, components))

    def _aliases(self, name: str) -> list[str]:
        tensor = self.tensors[name]
        return self._names[tensor.data_ptr(), tensor.shape]

    def _first(self, name: str) -> str:
        return self._aliases(name)[0]
