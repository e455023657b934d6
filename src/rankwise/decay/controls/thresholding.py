"""Proximal singular-value thresholding: exact zeros, where a gradient only approaches them."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim import Optimizer

from rankwise.decay.controls.spectral import SpectralControl
from rankwise.decay.hooks import Groups
from rankwise.decay.products import Target
from rankwise.errors import UserError


class SingularValueThresholding(SpectralControl):
    """Take `rate * coefficient` off every singular value, and let none fall below zero.

    The proximal step of `coefficient * |W|_*` (Cai, Candes & Shen, 2010). Attached, the rate is the learning rate
    summed over the steps since the last time, so that many small thresholds become one. A direction whose value has
    come to zero has left both factors, and no gradient brings it back where they were balanced.

    Arguments:
        target, model: as for every control of products.
        coefficient: the strength of the nuclear norm.

    >>> import torch
    >>> layer = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)).double()
    >>> for linear in layer:
    ...     _ = linear.weight.data.copy_(torch.diag(torch.tensor([2.0, 1.0]).double()))
    >>> SingularValueThresholding(layer, coefficient=1.5).apply()
    >>> (layer[1].weight @ layer[0].weight).detach().round(decimals=9).diagonal().tolist()
    [2.5, 0.0]
    """

    def __init__(self, target: Target, *, coefficient: float, model: nn.Module | None = None) -> None:
        if not 0 <= coefficient < float("inf"):
            raise UserError(f"coefficient must be a finite number of at least 0, got {coefficient}")
        super().__init__(target, model=model)
        self.coefficient = coefficient

    def shares(self, values: Tensor, rate: float) -> Tensor:
        return (1 - rate * self.coefficient / values.clamp_min(1e-300)).clamp_min(0.0)

    def _rate(self, optimizer: Optimizer) -> float | Tensor:
        held = Groups(optimizer)
        held.refreshed()
        rates = {float(held[each]["lr"]) for live in self.products for each in live.parameters if each in held}
        if len(rates) > 1:
            raise UserError(
                f"the products' groups have learning rates {', '.join(f'{rate:g}' for rate in sorted(rates))}: a "
                "threshold needs one; make a control for each, or call apply(rate) yourself"
            )
        return rates.pop() if rates else 0.0
