"""Rebalancing every so many steps, by whatever moves the gauge."""

from __future__ import annotations

from collections.abc import Callable

from rankwise.decay.controls.base import Control
from rankwise.errors import UserError


class Rebalancing(Control):
    """Call a function that balances the factors of a model's products and leaves its function alone.

    Decay on the product conserves the imbalance of its factors, and AdamW adds to it; where it matters, spend the gauge
    now and then. `rankwise.balance_` moves the gauge that every site allows, and an optimizer's state with it:

        Rebalancing(lambda: rw.balance_(model, optimizer=optimizer)).attach(optimizer, every=100)

    Arguments:
        rebalance: what to call, without arguments.

    >>> import torch
    >>> calls = []
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    >>> control = Rebalancing(lambda: calls.append("balanced")).attach(optimizer, every=2)
    >>> for _ in range(5):
    ...     optimizer.step()
    >>> calls
    ['balanced', 'balanced']
    """

    def __init__(self, rebalance: Callable[[], object]) -> None:
        if not callable(rebalance):
            raise UserError(f"rebalance must be a function without arguments, got {type(rebalance).__name__}")
        super().__init__()
        self._rebalance = rebalance

    def apply(self, rate: float = 1.0) -> None:
        self._rebalance()
