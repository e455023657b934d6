"""Whether a torch function has the two derivatives that the theory asks for, read off its autograd graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from rankwise.errors import UserError

# Functions whose first or second derivative jumps, by the name of their node in the graph.
KINKS = {
    "Abs": "an absolute value",
    "Celu": "CELU",
    "Clamp": "clamping",
    "ClampMax": "clamping",
    "ClampMin": "clamping",
    "Elu": "ELU",
    "Fmax": "an elementwise maximum",
    "Fmin": "an elementwise minimum",
    "Hardshrink": "hard shrinkage",
    "Hardsigmoid": "a hard sigmoid",
    "Hardswish": "hard swish",
    "Hardtanh": "a hard tanh or ReLU6",
    "Huber": "the Huber loss",
    "HuberLoss": "the Huber loss",
    "LeakyRelu": "leaky ReLU",
    "MaxPool2DWithIndices": "max pooling",
    "Maximum": "an elementwise maximum",
    "Minimum": "an elementwise minimum",
    "PreluKernel": "PReLU",
    "Relu": "ReLU",
    "RreluWithNoise": "RReLU",
    "Sgn": "a sign",
    "SmoothL1Loss": "the smooth-l1 loss",
    "Softshrink": "soft shrinkage",
    "Threshold": "a threshold",
}


def check_smooth(function: Callable[[Tensor], Tensor], *, size: int) -> None:
    """Refuse a function that is not a differentiable scalar, or whose second derivative jumps somewhere.

    >>> check_smooth(lambda q: torch.relu(q).sum(), size=2)
    Traceback (most recent call last):
    rankwise.errors.UserError: the network passes its weights through ReLU, which has no second derivative: ...
    """
    probe = torch.full((size,), 0.1, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        value = function(probe)
    if value.shape != ():
        raise UserError(f"the loss has shape {tuple(value.shape)}, expected a scalar: take its mean or sum")
    if value.dtype != torch.float64:
        raise UserError(
            f"the loss is {value.dtype}, expected torch.float64: convert the data and the module, .double()"
        )
    if value.grad_fn is None:
        raise UserError("the loss does not depend on the products through autograd: compute it with torch, undetached")
    for name in sorted(_operations(value.grad_fn)):
        if name in KINKS:
            raise UserError(
                f"the network passes its weights through {KINKS[name]}, which has no second derivative: the theory "
                "does not hold there; use GELU, softplus, tanh, or the square loss"
            )


def _operations(root: Any) -> Iterator[str]:
    """The operations of a graph, by the names of their nodes without `Backward0`."""
    seen, waiting = set(), [root]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield type(node).__name__.partition("Backward")[0]
        waiting.extend(following for following, _ in node.next_functions)
