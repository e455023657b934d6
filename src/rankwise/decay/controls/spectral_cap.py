"""A cap on operator norms."""

from __future__ import annotations

from torch import Tensor, nn

from rankwise.decay.controls.spectral import SpectralControl
from rankwise.decay.products import Target
from rankwise.errors import UserError


class SpectralCap(SpectralControl):
    """Bring every singular value above the cap down to it, and leave the others alone.

    The nearest matrix of that operator norm. It bounds by how much a product can amplify; it is no pressure on ranks.

    Arguments:
        target, model: as for every control of products.
        largest: the largest singular value that is left.

    >>> import torch
    >>> layer = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)).double()
    >>> for linear in layer:
    ...     _ = linear.weight.data.copy_(torch.diag(torch.tensor([2.0, 1.0]).double()))
    >>> SpectralCap(layer, largest=3.0).apply()
    >>> (layer[1].weight @ layer[0].weight).detach().round(decimals=9).diagonal().tolist()
    [3.0, 1.0]
    """

    def __init__(self, target: Target, *, largest: float, model: nn.Module | None = None) -> None:
        if not 0 < largest < float("inf"):
            raise UserError(f"largest must be a positive number, got {largest}")
        super().__init__(target, model=model)
        self.largest = largest

    def shares(self, values: Tensor, rate: float) -> Tensor:
        return (self.largest / values.clamp_min(1e-300)).clamp_max(1.0)
