"""The products that a decay acts on: their factors as views of live parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from rankwise.errors import UserError
from rankwise.product.product import REAL_TYPES, Product
from rankwise.sites.factor import Factor
from rankwise.sites.find import find
from rankwise.sites.site import Site
from rankwise.sites.sites import Sites

Target = Sites | nn.Module | Iterable[nn.Module]

# What may stand between two linear layers without making anything of their product: it passes everything on.
_TRANSPARENT = (nn.Identity, nn.Dropout)


@dataclass(eq=False)
class LiveProduct:
    """One product, or a stack of them, whose factors are regions of live parameters.

    Arguments:
        name: the site's name.
        parameters: the parameter that each factor lies in, and
        names: their names, and
        factors: where in it.
        site: the site that it was found as, if any.
    """

    name: str
    parameters: tuple[nn.Parameter, ...]
    names: tuple[str, ...]
    factors: tuple[Factor, ...]
    site: Site | None = None
    _views: list[tuple[int, tuple[int, ...], Tensor] | None] = field(default_factory=list, repr=False)

    def product(self) -> Product:
        """The product as it is now, outside the autograd graph; writing to its factors writes to the parameters."""
        return Product(*self.views())

    def views(self) -> tuple[Tensor, ...]:
        """The factors as views of the parameters' present storage."""
        if not self._views:
            self._views = [None] * len(self.parameters)
        return tuple(self._view(position) for position in range(len(self.parameters)))

    def like(self, position: int, tensor: Tensor) -> Tensor:
        """The region of a factor inside another tensor of the parameter's shape and strides, as a view."""
        parameter, view = self.parameters[position], self._view(position)
        assert tensor.stride() == parameter.stride(), f"{self.names[position]}: another memory layout"
        offset = tensor.storage_offset() + view.storage_offset() - parameter.storage_offset()
        return tensor.as_strided(view.shape, view.stride(), offset)

    def _view(self, position: int) -> Tensor:
        # Patterns are read once: a parameter keeps its storage until it moves to another device or type.
        parameter, kept = self.parameters[position], self._views[position] if self._views else None
        if kept is not None and kept[0] == parameter.data_ptr() and kept[1] == parameter.stride():
            return kept[2]
        view = self.factors[position].view(parameter.detach())
        if self._views:
            self._views[position] = (parameter.data_ptr(), parameter.stride(), view)
        return view

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of every factor."""
        return tuple(tuple(view.shape) for view in self.views())

    @cached_property
    def overlaps(self) -> bool:
        """Whether two factors share entries of a parameter, so that moving one moves the other."""
        return bool(shared([self]))


@dataclass(frozen=True, eq=False)
class Collected:
    """What a decay acts on: products, and modules that bring a closed form of their own."""

    products: tuple[LiveProduct, ...]
    modules: tuple[tuple[str, nn.Module], ...] = ()


def collect(target: Target, model: nn.Module | None = None) -> Collected:
    """The live products of a collection of sites, of a module, or of several modules.

    A module gives all its products of two factors or more, and every part of it that has a `frobenius_penalty()`; an
    `nn.Sequential` of linear layers is one product. Products that no decay may act on are refused, all in one line.

    Arguments:
        target: sites, a module, or modules.
        model: where the parameters of the sites are; the module that they were found in by default.
    """
    if isinstance(target, Sites):
        return Collected(tuple(_of_sites(target, model)))
    if model is not None:
        raise UserError("model= says where the parameters of Sites are: modules bring their own")
    modules = [target] if isinstance(target, nn.Module) else list(target)
    if not modules or not all(isinstance(module, nn.Module) for module in modules):
        given = ", ".join(sorted({type(module).__name__ for module in modules})) or "nothing"
        raise UserError(f"a decay acts on Sites or on modules, got {given}: give rankwise.find(model).select(...)")
    found = [_of_module(module, f"{place}." if len(modules) > 1 else "") for place, module in enumerate(modules)]
    products = tuple(product for each in found for product in each.products)
    closed = tuple(module for each in found for module in each.modules)
    if not products and not closed:
        kinds = ", ".join(type(module).__name__ for module in modules)
        raise UserError(
            f"no product of two or more factors and no tensorized layer in {kinds}: select single matrices by "
            "rankwise.find(model).select(kind=...)"
        )
    return Collected(products, closed)


def refuse_normalized(sites: Iterable[Site]) -> None:
    """Refuse sites with a normalization between or behind their factors: their product's size means nothing."""
    bad = [site.name for site in sites if any(site.gains) or (site.attention is not None and site.attention.norm)]
    if bad:
        raise UserError(
            f"a normalization stands between the factors of {listed(bad)}: the network does not feel the size of "
            "their product, so decay of it does nothing that is meant; leave them out with sites.select(where=...)"
        )


def _of_sites(sites: Sites, model: nn.Module | None) -> Iterator[LiveProduct]:
    source = model if model is not None else sites.source
    if not isinstance(source, nn.Module):
        raise UserError(
            f"decay needs live parameters, and these sites were found in a {type(source).__name__}: give model=, the "
            "module that is being trained"
        )
    if not len(sites):
        hint = f" ({len(sites.unread)} parameters were not read: see sites.unread)" if sites.unread else ""
        raise UserError(f"there are no sites to decay: the model has none, or the selection fits none{hint}")
    refuse_normalized(sites)
    parameters = dict(source.named_parameters(remove_duplicate=False))
    for site in sites:
        missing = [name for name in site.parameters if name not in parameters]
        if missing:
            raise UserError(f"{listed(missing)} of the site {site.name} is no parameter of the given model")
        names = tuple(factor.parameter for factor in site.factors)
        yield _live(site.name, tuple(parameters[name] for name in names), names, site.factors, site)


def _of_module(module: nn.Module, prefix: str) -> Collected:
    if isinstance(module, nn.Sequential) and (chain := _chain(module)) is not None:
        return Collected((_live(f"{prefix}chain", *chain),))
    closed = tuple(
        (f"{prefix}{path}" or type(part).__name__, part)
        for path, part in module.named_modules()
        if callable(getattr(part, "frobenius_penalty", None))
    )
    inside = {id(parameter) for _, part in closed for parameter in part.parameters()}
    sites = find(module).select(where=lambda site: len(site.factors) > 1)
    products = (
        [each for each in _of_sites(sites, module) if not inside & set(map(id, each.parameters))] if sites else []
    )
    for product in products:
        product.name = f"{prefix}{product.name}"
    return Collected(tuple(products), closed)


def _chain(module: nn.Sequential) -> tuple[tuple[nn.Parameter, ...], tuple[str, ...], tuple[Factor, ...]] | None:
    """The weights of a sequence of linear layers from the last to the first, or one line that says what is between."""
    places = [place for place, part in enumerate(module) if isinstance(part, nn.Linear)]
    if len(places) < 2:
        return None
    between = [part for part in list(module)[places[0] : places[-1]] if not isinstance(part, nn.Linear)]
    if opaque := [type(part).__name__ for part in between if not isinstance(part, _TRANSPARENT)]:
        raise UserError(
            f"{', '.join(opaque)} stands between the linear layers: their product is not what the network computes, "
            "so it cannot be decayed; decay each layer on its own"
        )
    weights = tuple(module[place].weight for place in reversed(places))
    names = tuple(f"{place}.weight" for place in reversed(places))
    return weights, names, tuple(Factor(name, "a b -> a b") for name in names)  # pyright: ignore[reportReturnType]


def _live(
    name: str,
    parameters: tuple[nn.Parameter, ...],
    names: tuple[str, ...],
    factors: tuple[Factor, ...],
    site: Site | None = None,
) -> LiveProduct:
    for parameter, stored in zip(parameters, names, strict=True):
        if parameter.dtype not in REAL_TYPES:
            raise UserError(f"{stored} of {name} is {parameter.dtype}: only real floating parameters can be decayed")
        if hasattr(parameter, "placements"):
            raise UserError(
                f"{stored} of {name} is sharded over devices (DTensor): its Grams are not on one of them, so decay is "
                "not offered; apply it before sharding, or use DistributedDataParallel"
            )
    live = LiveProduct(name, parameters, names, factors, site)
    live.product()  # Patterns and chains that do not fit say so here, not at the first step.
    return live


def listed(names: Iterable[Any], most: int = 4) -> str:
    names = list(map(str, names))
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def per_parameter(products: Iterable[LiveProduct]) -> dict[nn.Parameter, list[tuple[LiveProduct, int]]]:
    """For each parameter the factors that lie in it."""
    found: dict[nn.Parameter, list[tuple[LiveProduct, int]]] = {}
    for product in products:
        for position, parameter in enumerate(product.parameters):
            found.setdefault(parameter, []).append((product, position))
    return found


def shared(products: Iterable[LiveProduct]) -> set[nn.Parameter]:
    """The parameters of which some entries lie in more than one of the factors."""
    found = set()
    for parameter, places in per_parameter(products).items():
        if len(places) > 1:
            apart = sum(int(covered(parameter, [place]).sum()) for place in places)
            if int(covered(parameter, places).sum()) < apart:
                found.add(parameter)
    return found


def covered(parameter: nn.Parameter, factors: Iterable[tuple[LiveProduct, int]]) -> Tensor:
    """Which entries of a parameter lie in one of the factors, as booleans of its shape."""
    mask = torch.zeros(parameter.shape, dtype=torch.bool)
    for product, position in factors:
        product.factors[position].view(mask).fill_(True)
    return mask
