"""Decay of layers that bring a closed form of their own: tensors kept as cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def cores(module: Any) -> dict[nn.Parameter, str]:
    """The parameters that a module's `frobenius_penalty()` depends on, with their names: not its bias, for one."""
    named = {parameter: name for name, parameter in module.named_parameters() if parameter.requires_grad}
    gradients = _gradients(module, list(named))
    return {each: named[each] for each, gradient in zip(named, gradients, strict=True) if gradient is not None}


def value(module: Any) -> Tensor:
    """Half the squared Frobenius norm of a module's tensor."""
    return module.frobenius_penalty().detach()


def add_to(
    module: Any, target: Callable[[nn.Parameter], Tensor | None], scale: Callable[[nn.Parameter], float | Tensor]
) -> None:
    """Add `scale * gradient` of every core to its target, all gradients taken before anything is written."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter, gradient in zip(parameters, _gradients(module, parameters), strict=True):
        if gradient is not None and (into := target(parameter)) is not None:
            into.add_(gradient * scale(parameter))


def _gradients(module: Any, parameters: list[nn.Parameter]) -> tuple[Tensor | None, ...]:
    if not parameters:
        return ()
    with torch.enable_grad():
        return torch.autograd.grad(module.frobenius_penalty(), parameters, allow_unused=True)
