"""A hard cap on ranks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rankwise.decay.controls.spectral import SpectralControl
from rankwise.decay.products import Target
from rankwise.errors import UserError


class RankCap(SpectralControl):
    """Keep the largest singular values of every product and set the others to zero.

    The best approximation of that rank, in place. Attached, it projects after every so many steps (projected gradient
    descent on matrices of that rank).

    Arguments:
        target, model: as for every control of products.
        rank: how many singular values are kept.

    >>> layer = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 5, bias=False)).double()
    >>> RankCap(layer, rank=1).apply()
    >>> torch.linalg.matrix_rank(layer[1].weight @ layer[0].weight).item()
    1
    """

    def __init__(self, target: Target, *, rank: int, model: nn.Module | None = None) -> None:
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise UserError(f"rank must be a whole number from 1 on, got {rank!r}")
        super().__init__(target, model=model)
        self.rank = rank

    def shares(self, values: Tensor, rate: float) -> Tensor:
        return (torch.arange(values.shape[-1], device=values.device) < self.rank).expand_as(values).to(values.dtype)
