"""Acting once in every step of an optimizer, right before it moves the parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from rankwise.errors import UserError


@dataclass(frozen=True)
class Scaling:
    """What a gradient scaler has done to the gradients of a fused optimizer, which undoes it inside its step.

    Arguments:
        grad_scale: what every gradient is multiplied by, or None.
        found_inf: not zero where the step will be skipped, or None.
    """

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    @staticmethod
    def of(optimizer: Optimizer) -> Scaling:
        return Scaling(getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None))

    def kept(self, device: torch.device) -> Tensor | None:
        """1 where the step will be made and 0 where not, on a device, without waiting for it; None where it will."""
        return None if self.found_inf is None else (self.found_inf == 0).to(device=device, dtype=torch.float32)

    def lifted(self, device: torch.device) -> Tensor | None:
        """What something must be multiplied by that is added to the gradients."""
        return None if self.grad_scale is None else self.grad_scale.to(device)


def unwrapped(optimizer: Any) -> Optimizer:
    """The optimizer of torch inside the wrappers of accelerate and Lightning."""
    while not hasattr(optimizer, "_optimizer_step_pre_hooks") and isinstance(
        inside := getattr(optimizer, "optimizer", None), Optimizer
    ):
        optimizer = inside
    if not isinstance(optimizer, Optimizer):
        raise UserError(
            f"expected a torch optimizer, got {type(optimizer).__name__}: only those have the step hooks to attach to"
        )
    return optimizer


class StepHooks:
    """Calls `before` once in every step, after the gradients are final and before any parameter moves.

    With a closure that is after the closure has run, inside the step. `after` is called when the step has been made.

    Arguments:
        optimizer: any torch optimizer.
        before, after: what to call.
    """

    _before: Callable[[], None]
    _after: Callable[[], None]

    def __init__(self, optimizer: Optimizer, before: Callable[[], None], after: Callable[[], None]) -> None:
        # Compiled steps run these as ordinary Python: a schedule or a count frozen into a graph would be wrong.
        self._before, self._after = (_outside_graphs(each) for each in (before, after))
        self._handles: list[RemovableHandle] = [
            optimizer.register_step_pre_hook(self._pre),
            optimizer.register_step_post_hook(lambda *_: self._after()),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _pre(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict) -> tuple[tuple, dict] | None:
        optimizer, *rest = args
        closure = kwargs.get("closure", rest[0] if rest else None)
        if closure is None:
            self._before()
            return None

        def closed() -> Any:
            loss = closure()
            self._before()
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": closed}
        return (optimizer, closed, *rest[1:]), kwargs


def _outside_graphs(function: Callable[[], None]) -> Callable[[], None]:
    kept: Any = torch.compiler.disable(torch.no_grad()(function))
    return kept


class Groups:
    """Which group of an optimizer holds a parameter, found by identity; loading a state replaces the groups."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._seen: list[dict[str, Any]] = []
        self._of: dict[nn.Parameter, dict[str, Any]] = {}
        self.version = 0

    def refreshed(self) -> bool:
        """Look whether the groups are still the same; true where they were not."""
        groups = self.optimizer.param_groups
        if len(groups) == len(self._seen) and all(one is two for one, two in zip(groups, self._seen, strict=True)):
            return False
        self._seen = list(groups)
        self._of = {parameter: group for group in groups for parameter in group["params"]}
        self.version += 1
        return True

    def __getitem__(self, parameter: nn.Parameter) -> dict[str, Any]:
        return self._of[parameter]

    def get(self, parameter: nn.Parameter) -> dict[str, Any] | None:
        return self._of.get(parameter)

    def __contains__(self, parameter: object) -> bool:
        return parameter in self._of
