"""What every control of products shares: it acts once when told to, or after every so many steps of an optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

from torch import Tensor, nn
from torch.optim import Optimizer

from rankwise.decay.hooks import Groups, StepHooks, unwrapped
from rankwise.decay.products import Target, collect, listed
from rankwise.errors import UserError


class Control(ABC):
    """Changes products of weights where they stand; `apply()` does it once, `attach(optimizer, every=n)` repeatedly."""

    def __init__(self) -> None:
        self.steps = 0
        self._hooks: StepHooks | None = None

    @abstractmethod
    def apply(self, rate: float = 1.0) -> None:
        """Act once.

        Arguments:
            rate: what strengths per step are multiplied by; attached, it is the learning rate summed over the steps
                since the last time.
        """

    def attach(self, optimizer: Any, *, every: int = 1) -> Self:
        """Act after every so many steps of an optimizer from now on.

        Arguments:
            optimizer: any torch optimizer, also in accelerate's or Lightning's wrapper.
            every: after how many steps.
        """
        if self._hooks is not None:
            raise UserError(f"this {type(self).__name__} is attached already: detach() it first")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise UserError(f"every must be a number of steps from 1 on, got {every!r}")
        inner = unwrapped(optimizer)
        self._check_optimizer(inner)
        total = 0.0

        def after() -> None:
            nonlocal total
            self.steps += 1
            total += float(self._rate(inner))
            if self.steps % every == 0:
                self.apply(total)
                total = 0.0

        self._hooks = StepHooks(inner, lambda: None, after)
        return self

    def detach(self) -> None:
        """Stop acting."""
        if self._hooks is None:
            raise UserError(f"this {type(self).__name__} is not attached to an optimizer")
        self._hooks.remove()
        self._hooks = None

    def state_dict(self) -> dict[str, Any]:
        """The number of steps made."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.steps = int(state["steps"])

    def _check_optimizer(self, optimizer: Optimizer) -> None:  # noqa: B027 - most controls take any optimizer
        """Refuse an optimizer that does not fit."""

    def _rate(self, optimizer: Optimizer) -> float | Tensor:
        return 1.0


class ProductControl(Control):
    """A control of the products of sites, or of a module.

    Arguments:
        target: sites of a model; or a module, or modules, whose products of two factors or more are meant.
        model: where the sites' parameters are; the module that the sites were found in by default.
    """

    def __init__(self, target: Target, *, model: nn.Module | None = None) -> None:
        super().__init__()
        collected = collect(target, model)
        if collected.modules:
            raise UserError(
                f"{listed(path for path, _ in collected.modules)} is kept as a tensor, which has no singular values of "
                f"its own: {type(self).__name__} acts on products of matrices"
            )
        self.products = collected.products

    def _check_optimizer(self, optimizer: Optimizer) -> None:
        held = Groups(optimizer)
        held.refreshed()
        missing = [
            name
            for live in self.products
            for parameter, name in zip(live.parameters, live.names, strict=True)
            if parameter.requires_grad and parameter not in held
        ]
        if missing:
            raise UserError(
                f"the optimizer does not hold {listed(dict.fromkeys(missing))}: attach to the one that does"
            )
