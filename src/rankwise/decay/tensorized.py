"""Decay of layers that bring a closed form of their own: tensors kept as cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Gradients = Mapping[nn.Parameter, Tensor]


def cores(module: Any) -> dict[nn.Parameter, str]:
    """The parameters that a module's `frobenius_penalty()` depends on, with their names: not its bias, for one."""
    named = {parameter: name for name, parameter in module.named_parameters() if parameter.requires_grad}
    return {each: named[each] for each in gradients(module)}


def value(module: Any) -> Tensor:
    """Half the squared Frobenius norm of a module's tensor."""
    return module.frobenius_penalty().detach()


def gradients(module: Any) -> dict[nn.Parameter, Tensor]:
    """The gradient of that for every core that learns."""
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not learning:
        return {}
    with torch.enable_grad():
        found = torch.autograd.grad(module.frobenius_penalty(), learning, allow_unused=True)
    return {each: gradient for each, gradient in zip(learning, found, strict=True) if gradient is not None}


def add_gradients(
    found: Gradients,
    target: Callable[[nn.Parameter], Tensor | None],
    scale: Callable[[nn.Parameter], float | Tensor],
) -> Tensor | None:
    """Add `scale * gradient` of every core to its target, or none of them where one is not finite.

    Returns:
        how many tensors were left out, on their device; None where there are no cores.
    """
    if not found:
        return None
    good = torch.stack([gradient.isfinite().all() for gradient in found.values()]).all()
    for parameter, gradient in found.items():
        if (into := target(parameter)) is not None:
            into.add_(torch.where(good, gradient * scale(parameter), 0.0))
    return (~good).sum()
