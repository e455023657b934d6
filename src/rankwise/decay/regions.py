"""Ordinary weight decay on a part of a parameter: what a group of an optimizer cannot express."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rankwise.decay.hooks import Scaling

if TYPE_CHECKING:
    from rankwise.decay.ordinary import Manner


class RegionDecay:
    """Weight decay with a coefficient for each entry of one parameter, kept as a row or a column where that is enough.

    Arguments:
        name: the parameter's name.
        parameter: the parameter.
        coefficients: to broadcast to its shape; entries of 0 do not decay.
        manner: added to the gradient, or a step of its own scaled by the learning rate.
    """

    def __init__(self, name: str, parameter: nn.Parameter, coefficients: Tensor, manner: Manner) -> None:
        self.name = name
        self.parameter = parameter
        self.manner = manner
        self.share = float((coefficients != 0).double().mean())
        self.values = sorted({float(value) for value in coefficients.unique()} - {0.0})
        self._coefficients = narrowed(coefficients)

    def reaches(self, entries: Tensor) -> bool:
        """Whether any of these entries of the parameter decay, given as booleans of its shape."""
        return bool((entries.to(self._coefficients.device) & (self._coefficients != 0)).any())

    def apply(self, rate: float | Tensor, scaling: Scaling) -> None:
        """Decay once, unless the parameter has no gradient: optimizers leave it alone then."""
        parameter, gradient = self.parameter, self.parameter.grad
        if gradient is None:
            return
        # In float32 or better: a factor next to 1 would round to 1 in a shorter type.
        self._coefficients = self._coefficients.to(
            parameter.device, torch.promote_types(parameter.dtype, torch.float32)
        )
        coefficients = self._coefficients
        if (kept := scaling.kept(parameter.device)) is not None:
            coefficients = coefficients * kept
        if self.manner == "decoupled":
            parameter.mul_(1 - rate * coefficients)
        else:
            if (lifted := scaling.lifted(parameter.device)) is not None:
                coefficients = coefficients * lifted
            gradient.add_(parameter * coefficients)


def narrowed(coefficients: Tensor) -> Tensor:
    """The same coefficients with every axis along which they are constant of size one.

    >>> narrowed(torch.tensor([[1.0, 1.0], [0.0, 0.0]])).shape
    torch.Size([2, 1])
    """
    coefficients = coefficients.detach().float()
    for axis in range(coefficients.ndim):
        first = coefficients.narrow(axis, 0, 1)
        if bool((coefficients == first).all()):
            coefficients = first
    return coefficients.clone()
