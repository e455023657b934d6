"""One small layer of every class, with an input for it: what holds for all layers is tested on all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import rankwise as rw
from rankwise.layers.conv1d import FactorizedConv1D
from tests.layers.draws import generator

Made = tuple[nn.Module, tuple[Tensor, ...]]


def _stream(*sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=generator(1), dtype=torch.float64)


def _words() -> Tensor:
    return torch.randint(0, 11, (4, 3), generator=generator(1))


def _linear(**settings: Any) -> Made:
    return rw.FactorizedLinear(7, 5, **{"rank": 3, **settings}, dtype=torch.float64), (_stream(4, 7),)


def _conv1d() -> Made:
    return FactorizedConv1D(7, 5, rank=3, dtype=torch.float64), (_stream(4, 7),)


def _conv(**settings: Any) -> Made:
    layer = rw.FactorizedConv2d(3, 4, 3, **{"rank": 2, **settings}, padding=1, stride=2, dtype=torch.float64)
    return layer, (_stream(4, 3, 8, 6),)


def _embedding(**settings: Any) -> Made:
    return rw.FactorizedEmbedding(11, 6, **{"rank": 3, **settings}, dtype=torch.float64), (_words(),)


def _attention(**settings: Any) -> Made:
    layer = rw.FactorizedAttention(8, 4, **{"head_size": 3, "key_heads": 2, **settings}, dtype=torch.float64)
    return layer, (_stream(4, 5, 8),)


def _multihead() -> Made:
    dense = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    stream = _stream(4, 5, 8)
    return rw.FactorizedMultiheadAttention.from_multihead(dense, head_size=3), (stream, stream, stream)


def _tensor_linear(form: Any) -> Made:
    return rw.TensorizedLinear(6, 4, form=form, ranks=2, dtype=torch.float64), (_stream(4, 6),)


def _tensor_conv(form: Any) -> Made:
    return rw.TensorizedConv2d(3, 4, 3, form=form, ranks=2, padding=1, dtype=torch.float64), (_stream(4, 3, 6, 6),)


def _separable(form: Any) -> Made:
    layer = rw.TensorizedSeparableConv2d(4, 6, 3, form=form, ranks=2, padding=1, dtype=torch.float64)
    return layer, (_stream(4, 4, 6, 6),)


ZOO: dict[str, Callable[[], Made]] = {
    "linear": _linear,
    "linear, deep": partial(_linear, depth=1),
    "linear, wide": partial(_linear, rank=9, overcomplete=True),
    "linear, at once": partial(_linear, execution="one-step"),
    "conv1d": _conv1d,
    "conv, spatial": _conv,
    "conv, channel": partial(_conv, form="channel"),
    "conv, deep": partial(_conv, depth=2),
    "conv, wide": partial(_conv, rank=14, overcomplete=True),
    "embedding": _embedding,
    "embedding, deep": partial(_embedding, depth=1, padding_idx=0),
    "attention": _attention,
    "attention, deep": partial(_attention, depth=1),
    "multihead": _multihead,
    **{f"linear, {form}": partial(_tensor_linear, form) for form in ("cp", "tucker", "tensor-train")},
    **{f"conv, {form}": partial(_tensor_conv, form) for form in ("cp", "tucker", "tensor-train")},
    **{f"separable, {form}": partial(_separable, form) for form in ("cp", "tucker", "tensor-train")},
}


def made(name: str) -> Made:
    """A layer and the arguments of its forward, always the same."""
    torch.manual_seed(0)
    return ZOO[name]()


def first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output
