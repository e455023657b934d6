"""LAMB: Adam's direction, with a step for each tensor in proportion to its own size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rankwise.errors import UserError

Adapted = Literal["decayed", "all"]

# The operations on lists of tensors that torch's own optimizers are made of.
_batched: Any = torch


class Lamb(Optimizer):
    """LAMB (You et al., 2020): for every tensor, with Adam's moments `m` and `v` and their bias corrected,

        u = m / (sqrt(v) + eps) + weight_decay * p,   p <- p - lr * (|p| / |u|) * u,

    the trust ratio `|p| / |u|` being 1 where either norm is zero. Weight decay stands inside the update that the ratio
    scales. All arithmetic is batched over the tensors of a group, and nothing waits for the device.

    Arguments:
        params: parameters, or groups of them.
        lr: the learning rate, a number or a tensor.
        betas: the decay of both moments.
        eps: added to the root of the second moment.
        weight_decay: as above.
        bias_correction: divide the moments by `1 - beta^t`.
        grad_averaging: weigh the new gradient by `1 - beta_1` in the first moment; by 1 without.
        max_grad_norm: scale all gradients together so that their norm is at most this, before anything else.
        max_trust_ratio: the largest trust ratio.
        adapted: which groups have a trust ratio: "decayed", those with a weight decay, as when LAMB trained BERT
            (biases and gains take Adam's steps); or "all".

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> weight.grad = torch.tensor([1.0, -1.0])
    >>> Lamb([weight], lr=0.1, weight_decay=0.0, adapted="all").step()
    >>> [round(value, 4) for value in weight.tolist()]
    [2.6464, 4.3536]
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
        grad_averaging: bool = True,
        max_grad_norm: float | None = None,
        max_trust_ratio: float | None = None,
        adapted: Adapted = "decayed",
    ) -> None:
        _check(lr, betas, eps, weight_decay, max_grad_norm, max_trust_ratio, adapted)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "grad_averaging": grad_averaging,
            "max_trust_ratio": max_trust_ratio,
            "adapted": adapted,
        }
        super().__init__(params, defaults)
        self.max_grad_norm = max_grad_norm

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "max_grad_norm": self.max_grad_norm}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Make one step, after evaluating the closure with gradients where one is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = [(group, [each for each in group["params"] if each.grad is not None]) for group in self.param_groups]
        groups = [(group, parameters) for group, parameters in groups if parameters]
        shrink = self._shrinking([each for _, parameters in groups for each in parameters])
        updates: dict[nn.Parameter, Tensor] = {}
        for group, parameters in groups:
            updates.update(zip(parameters, self._adam(group, parameters, shrink), strict=True))
        self._decay(groups, updates)
        for group, parameters in groups:
            self._move(group, parameters, [updates[parameter] for parameter in parameters])
        return loss

    def _decay(self, groups: Iterable[tuple[dict[str, Any], list[nn.Parameter]]], updates: dict[Any, Tensor]) -> None:
        """Add what decays the weights to the updates, before their norms are taken."""
        for group, parameters in groups:
            if group["weight_decay"] and parameters:
                found = [updates[parameter] for parameter in parameters]
                _batched._foreach_add_(found, parameters, alpha=group["weight_decay"])

    def _shrinking(self, parameters: list[nn.Parameter]) -> Tensor | None:
        """What all gradients are divided by, or None."""
        if self.max_grad_norm is None or not parameters:
            return None
        norms = _batched._foreach_norm([_dense(parameter) for parameter in parameters])
        total = torch.stack([norm.to(norms[0].device) for norm in norms]).norm()
        return (total / self.max_grad_norm).clamp_min(1.0)

    def _adam(self, group: dict[str, Any], parameters: list[nn.Parameter], shrink: Tensor | None) -> list[Tensor]:
        """Adam's directions, one for each parameter."""
        first, second = group["betas"]
        gradients = [_dense(parameter) for parameter in parameters]
        if shrink is not None:
            gradients = [gradient / shrink.to(gradient.device) for gradient in gradients]
        states = [self._state_of(parameter) for parameter in parameters]
        for state in states:
            state["step"] += 1
        means, squares = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq"))
        _batched._foreach_mul_(means, first)
        _batched._foreach_add_(means, gradients, alpha=1 - first if group["grad_averaging"] else 1.0)
        _batched._foreach_mul_(squares, second)
        _batched._foreach_addcmul_(squares, gradients, gradients, value=1 - second)
        steps = [int(state["step"]) if group["bias_correction"] else 0 for state in states]
        roots = list(_batched._foreach_sqrt(squares))
        if group["bias_correction"]:
            _batched._foreach_div_(roots, [(1 - second**count) ** 0.5 for count in steps])
        _batched._foreach_add_(roots, group["eps"])
        updates = list(_batched._foreach_div(means, roots))
        if group["bias_correction"]:
            _batched._foreach_div_(updates, [1 - first**count for count in steps])
        return updates

    def _move(self, group: dict[str, Any], parameters: list[nn.Parameter], updates: list[Tensor]) -> None:
        rate = group["lr"]
        if group["adapted"] == "all" or group["weight_decay"]:
            sizes = zip(_batched._foreach_norm(parameters), _batched._foreach_norm(updates), strict=True)
            ratios = [torch.where((one > 0) & (two > 0), one / two, 1.0) for one, two in sizes]
            if group["max_trust_ratio"] is not None:
                ratios = [ratio.clamp_max(group["max_trust_ratio"]) for ratio in ratios]
            _batched._foreach_mul_(updates, ratios)
        if isinstance(rate, Tensor):
            _batched._foreach_mul_(updates, rate)
            _batched._foreach_sub_(parameters, updates)
        else:
            _batched._foreach_add_(parameters, updates, alpha=-rate)

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        state = self.state[parameter]
        if not state:
            # The count stays on the CPU, where reading it waits for nothing.
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state


def _dense(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    if gradient.is_sparse or gradient.is_complex():
        raise UserError("Lamb takes dense, real gradients: make the embedding with sparse=False")
    return gradient


def _check(
    lr: float | Tensor,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    max_grad_norm: float | None,
    max_trust_ratio: float | None,
    adapted: str,
) -> None:
    if not isinstance(lr, Tensor) and not lr >= 0:
        raise UserError(f"lr must be 0 or more, got {lr}")
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise UserError(f"betas must be two numbers from 0 to below 1, got {betas}")
    for name, value in (("eps", eps), ("weight_decay", weight_decay)):
        if isinstance(value, int | float) and not value >= 0:
            raise UserError(f"{name} must be 0 or more, got {value}")
    for name, value in (("max_grad_norm", max_grad_norm), ("max_trust_ratio", max_trust_ratio)):
        if value is not None and not value > 0:
            raise UserError(f"{name} must be above 0, or None for none, got {value}")
    if adapted not in get_args(Adapted):
        raise UserError(f"adapted must be 'decayed' or 'all', got {adapted!r}")
