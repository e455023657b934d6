"""Put tensor forms in the place of a model's weights: what `factorize` is to products."""

from __future__ import annotations

from math import prod
from typing import Any

from torch import nn

from rankwise.errors import UserError
from rankwise.layers.candidates import Candidate, candidates, check_module
from rankwise.layers.initialization import Init
from rankwise.layers.planning import share_of
from rankwise.layers.ranks import scale_within
from rankwise.layers.selection import Select, inside_attention, selected
from rankwise.layers.surgery import copied
from rankwise.layers.tensor_ranks import (
    Form,
    checked_form,
    core_shapes,
    kernel_ranks,
    matrix_ranks,
    near_equal_modes,
)
from rankwise.layers.tensorized_conv2d import TensorizedConv2d
from rankwise.layers.tensorized_linear import TensorizedLinear

# Below every scale that makes a rank larger than one.
_LEAST = 1e-9


def tensorize(
    model: nn.Module,
    *,
    form: Form = "tensor-train",
    scale: float | None = None,
    budget: float | None = None,
    select: Select | None = None,
    init: Init = "spectral",
) -> Any:
    """A copy of a model with tensor forms in the place of its weights; the model is left alone.

    `nn.Linear` becomes `TensorizedLinear` and `nn.Conv2d` `TensorizedConv2d`, started from the weights as they are.
    Embeddings, tied weights, and what `factorize` leaves dense stay as they are. `rankwise.collapse` is the way back.

    Arguments:
        form: "tensor-train", "tucker" or "cp".
        scale: the share of the largest ranks in every layer; or
        budget: the parameters that the whole model may have, a share (0.1) or a count (100_000). One scale for all
            layers is found by bisection.
        select: as for `factorize`.
        init: how the cores start, see `TensorizedLinear`.

    >>> from rankwise import collapse
    >>> net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> small = tensorize(net, scale=0.5)
    >>> small[0]
    TensorizedLinear(in_features=16, out_features=16, form='tensor-train', modes=8x8x4, ranks=4x2, bias=True)
    >>> collapse(small)[0]
    Linear(in_features=16, out_features=16, bias=True)
    """
    check_module(model)
    checked_form(form)
    if (scale is None) == (budget is None):
        raise UserError("give one of scale= and budget=: for example scale=0.2 or budget=0.1")
    chosen, _ = selected(candidates(model)[0], select, inside_attention(model))
    layers = [candidate for candidate in chosen if _has_tensor_form(candidate)]
    if not layers:
        raise UserError(
            f"nothing to tensorize: {len(chosen)} layers are selected, none a linear layer or a convolution"
        )
    if budget is not None:
        scale = _scale_within(model, layers, form, budget)
    assert scale is not None
    replacements: dict[int, Any] = {}
    for candidate in layers:
        (module,) = candidate.modules
        ranks = _ranks(candidate, form, scale)
        kind: Any = TensorizedConv2d if isinstance(module, nn.Conv2d) else TensorizedLinear
        replacements[id(module)] = kind.from_dense(module, form=form, ranks=ranks, init=init)
    return copied(model, replacements)


def _has_tensor_form(candidate: Candidate) -> bool:
    return len(candidate.modules) == 1 and type(candidate.modules[0]) in (nn.Linear, nn.Conv2d)


def _modes(candidate: Candidate) -> tuple[int, ...]:
    if candidate.kind == "conv":
        outputs, inputs, height, width = candidate.weight_shape
        return (outputs, height, width, inputs)
    return near_equal_modes(candidate.parameters)


def _ranks(candidate: Candidate, form: Form, scale: float) -> tuple[int, ...]:
    rule = kernel_ranks if candidate.kind == "conv" else matrix_ranks
    return rule(form, _modes(candidate), scale)


def _scale_within(model: nn.Module, layers: list[Candidate], form: Form, budget: float) -> float:
    total = sum(parameter.numel() for parameter in model.parameters())
    rest = total - sum(candidate.parameters for candidate in layers)

    def count(scale: float) -> int:
        ranks = [_ranks(candidate, form, max(scale, _LEAST)) for candidate in layers]
        shapes = (core_shapes(form, _modes(layer), rank) for layer, rank in zip(layers, ranks, strict=True))
        return rest + sum(prod(shape) for cores in shapes for shape in cores)

    return max(scale_within(count, budget=share_of(budget, total), dense=total), _LEAST)
