"""Copies of models with products or tensor forms in the place of weights, and with weights in the place of those."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from rankwise.errors import UserError
from rankwise.layers.base import FactorizedLayer
from rankwise.layers.candidates import candidates, check_module
from rankwise.layers.dense import factorized_like, kind_of
from rankwise.layers.plan import Plan, PlannedLayer
from rankwise.layers.ties import retie


def applied(plan: Plan, model: nn.Module) -> Any:
    """A copy of a model in which the planned layers are factorized, started from the model's own weights."""
    replacements: dict[int, Any] = {}
    tied = {name: candidate.names for candidate in candidates(model)[0] for name in candidate.names}
    for layer in plan.layers:
        modules = [_found(model, name, layer) for name in layer.names]
        _check_ties(layer, tied)
        timed = plan.execution == "auto" and layer.timing is not None
        made: Any = None
        # An embedding goes first: it knows which row of the factors is padding.
        for dense in sorted(modules, key=lambda module: not isinstance(module, nn.Embedding)):
            empty: Any = factorized_like(
                dense,
                rank=layer.rank,
                depth=plan.depth,
                form=plan.form,
                init=plan.init,
                execution=layer.timing.faster if timed and layer.timing is not None else plan.execution,
            )
            placed: Any = empty.settle(dense) if made is None else empty.share(made.factors, dense)
            made = made or placed
            replacements[id(dense)] = placed
    return copied(model, replacements)


def collapse(model: nn.Module) -> Any:
    """A copy of a model with the dense layer in the place of every factorized one, of the same function.

    Products are computed in float64 and cast back to the type of their factors. Weights that were tied are tied again.
    `FactorizedAttention`, which may have heads that no dense layer has, stays as it is.

    >>> from rankwise import factorize
    >>> net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> collapse(factorize(net, rank=4))
    Sequential(
      (0): Linear(in_features=8, out_features=8, bias=True)
      (1): ReLU()
      (2): Linear(in_features=8, out_features=2, bias=True)
    )
    """
    check_module(model)
    replacements: dict[int, Any] = {}
    weights: dict[tuple[int, ...], nn.Parameter] = {}
    for module in model.modules():
        if not isinstance(module, nn.Module) or not _folds(module):
            continue
        dense: Any = module.fold()  # pyright: ignore[reportCallIssue]
        if isinstance(module, FactorizedLayer):
            dense.weight = weights.setdefault(tuple(map(id, module.factors)), dense.weight)
        replacements[id(module)] = dense
    if not replacements:
        warnings.warn("collapse has no effect: the model has no factorized layers", stacklevel=2)
    return copied(model, replacements)


def copied(model: nn.Module, replacements: dict[int, Any]) -> Any:
    """A copy of a model with other modules in the place of some, by their ids."""
    # What the memo holds counts as copied already: every mention of a layer, as a child, as an attribute or in a list,
    # becomes its replacement, and the weights that are replaced are never copied.
    made = copy.deepcopy(model, dict(replacements))
    retie(made)
    return made


def _found(model: nn.Module, name: str, layer: PlannedLayer) -> nn.Module:
    try:
        module: Any = model.get_submodule(name)
    except AttributeError:
        raise UserError(f"the plan names a layer '{name}', which this model has not: plan for this model") from None
    shape = tuple(module.weight.shape) if kind_of(module) is not None else None
    if shape != layer.weight_shape:
        raise UserError(
            f"the plan expects a weight of shape {layer.weight_shape} at '{name}', and finds a "
            f"{type(module).__name__}{'' if shape is None else f' of {shape}'}: plan for this model"
        )
    return module


def _check_ties(layer: PlannedLayer, tied: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse a plan whose layers share their weight with others than when it was made: they would be parted."""
    for name in layer.names:
        now = tied.get(name, ())
        if set(now) != set(layer.names):
            raise UserError(
                f"the plan is for a weight of {_listed(layer.names)}, which in this model is one of "
                f"{_listed(now) or 'a layer without a factorized form'}: plan for this model"
            )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)


def _folds(module: nn.Module) -> bool:
    """Whether a module is one of this room that has a dense layer of the same function."""
    ours = any(base.__module__.startswith(f"{__package__}.") for base in type(module).__mro__)
    return ours and callable(getattr(module, "fold", None))
