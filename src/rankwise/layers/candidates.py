"""Which layers of a model can be factorized, which cannot, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import UninitializedParameter

from rankwise.errors import UserError
from rankwise.layers.dense import KINDS, kind_of
from rankwise.layers.embedding import no_factorized_form
from rankwise.layers.ranks import Kind
from rankwise.product.product import REAL_TYPES
from rankwise.sites.singles import is_matrix


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A weight that can be factorized, with every layer that computes with it.

    Arguments:
        names: the paths of these layers, the first one in front; more than one where the weight is tied.
        modules: the layers.
        kind: of the first layer.
        weight_shape: the shape of the weight.
    """

    names: tuple[str, ...]
    modules: tuple[nn.Module, ...]
    kind: Kind
    weight_shape: tuple[int, ...]

    @property
    def parameters(self) -> int:
        return torch.Size(self.weight_shape).numel()

    def left_dense(self, reason: str) -> StaysDense:
        return StaysDense(f"{self.names[0]}.weight".lstrip("."), self.weight_shape, reason)


@dataclass(frozen=True)
class StaysDense:
    """A matrix parameter that is not factorized, and why."""

    parameter: str
    shape: tuple[int, ...]
    reason: str


def candidates(model: nn.Module) -> tuple[list[Candidate], list[StaysDense]]:
    """The weights of a model that can be factorized, in the order of its modules, and the matrices that cannot.

    >>> able, unable = candidates(nn.Sequential(nn.Linear(4, 3), nn.LSTM(3, 2)))
    >>> able[0].names, unable[0].reason
    (('0',), 'it belongs to a LSTM, which has no factorized form')
    """
    able: dict[int, list[tuple[str, nn.Module]]] = {}
    holders: dict[int, list[str]] = {}
    unable: list[tuple[int, StaysDense]] = []
    for path, module, name, parameter in _matrices(model):
        holders.setdefault(id(parameter), []).append(f"{path}.{name}".lstrip("."))
        if (reason := _adapted(path) or _obstacle(module, name)) is None:
            able.setdefault(id(parameter), []).append((path, module))
        else:
            shape = () if isinstance(parameter, UninitializedParameter) else tuple(parameter.shape)
            unable.append((id(parameter), StaysDense(holders[id(parameter)][-1], shape, reason)))
    # Where one holder of a tied weight must keep it, the others cannot have factors in its place.
    kept = dict(unable)
    found = []
    for key, members in able.items():
        names, modules = zip(*members, strict=True)
        kind = kind_of(modules[0])
        assert kind is not None
        candidate = Candidate(names=names, modules=modules, kind=kind, weight_shape=tuple(modules[0].weight.shape))
        if key in kept:
            unable.append((key, candidate.left_dense(f"it is tied to {kept[key].parameter}: {kept[key].reason}")))
        else:
            found.append(candidate)
    return found, [each for _, each in unable]


def check_module(model: Any) -> None:
    """Refuse what is no model, such as a state dict."""
    if not isinstance(model, nn.Module):
        raise UserError(
            f"this needs a model, a torch.nn.Module, and got a {type(model).__name__}: load weights into their model"
        )


def _matrices(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """Every matrix parameter with the module that holds it; factors are shown as their layer's."""
    inside: set[str] = set()
    for path, module in model.named_modules():
        if any(path.startswith(f"{each}.") for each in inside):
            continue
        if _is_ours(module):
            inside.add(path)
        named = module.named_parameters() if path in inside else module.named_parameters(recurse=False)
        for name, parameter in named:
            if isinstance(parameter, UninitializedParameter) or is_matrix(tuple(parameter.shape)):
                yield path, module, name, parameter


def _adapted(path: str) -> str | None:
    """Why a layer that belongs to a LoRA of PEFT cannot become a product, or None."""
    components = path.split(".")
    if any(component.startswith("lora_") for component in components):
        return "it is a factor of an adapter already"
    if components[-1] == "base_layer":
        return "an adapter stands on it, and would be merged into its weight: merge it first"
    return None


def _is_ours(module: nn.Module) -> bool:
    return any(base.__module__.startswith(f"{__package__}.") for base in type(module).__mro__)


def _obstacle(module: nn.Module, name: str) -> str | None:
    """Why a matrix parameter cannot become a product, or None."""
    kind = type(module).__name__
    if _is_ours(module):
        return f"it is a factor of a {kind} already"
    if isinstance(getattr(module, name.split(".")[0], None), UninitializedParameter):
        return "its layer is lazy: run the model once on an input"
    if kind_of(module) is None or name != "weight":
        if isinstance(module, (nn.MultiheadAttention, NonDynamicallyQuantizableLinear)):
            return "it belongs to a MultiheadAttention: rankwise.shrink_heads gives it smaller heads"
        base = next((base for base in KINDS if isinstance(module, base)), None)
        if base is not None:
            return f"its layer is a {kind}, which may do more than a {base.__name__}"
        return f"it belongs to a {kind}, which has no factorized form"
    weight = module.weight
    if type(weight) is not nn.Parameter or type(weight.data) is not Tensor:
        return f"its weight is a {type(weight.data).__name__}, which does not hold plain numbers: factorize it before"
    if weight.dtype not in REAL_TYPES:
        return f"its weight is of type {str(weight.dtype).removeprefix('torch.')}"
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    if any(hooks):
        return "its layer has hooks, which a layer in its place would not have"
    if isinstance(module, nn.Conv2d) and module.groups != 1:
        return f"its convolution has {module.groups} groups: a product for each group"
    if isinstance(module, nn.Embedding):
        return no_factorized_form(module)
    return None
