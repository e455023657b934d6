"""Frobenius decay: weight decay as the dense layer would feel it, on a product."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rankwise.decay.base import Decay
from rankwise.decay.products import Collected
from rankwise.decay.stacks import Task
from rankwise.product.multipliers import Multipliers, multipliers
from rankwise.product.penalties import frobenius_penalty
from rankwise.product.product import Product


class FrobeniusDecay(Decay):
    """Half the squared Frobenius norm of every product: what weight decay is to a dense layer.

        F = |A B|_F^2 / 2,   dF/dA = A (B B^T),   dF/dB = (A^T A) B,

    and for a chain `dF/dA_i = (L^T L) A_i (R R^T)` with `L` and `R` what stands left and right of `A_i`. Every singular
    value shrinks in proportion, `s / (1 + coefficient)` where weight decay on the factors gives `s - coefficient`: it
    leaves ranks alone. It also leaves `A^T A - B B^T` alone, which decay on the factors would drive to zero, so that it
    needs a balanced start (`rankwise.balance_`, or spectral initialization).

    The coefficient is the dense layer's weight decay, whatever the rank.

    >>> import torch
    >>> layer = torch.nn.Sequential(torch.nn.Linear(4, 2, bias=False), torch.nn.Linear(2, 4, bias=False))
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, weight_decay=5e-4)
    >>> FrobeniusDecay(layer).attach(optimizer)
    FrobeniusDecay(1 products, coefficient=taken over)
    >>> optimizer.param_groups[0]["weight_decay"]
    0.0
    """

    def multipliers(self, first: Tensor, inner: Sequence[Tensor], last: Tensor, task: Task) -> Multipliers:
        return multipliers(first, inner, last, lambda left, right: (left, right))

    def matrix_gradient(self, matrix: Tensor, task: Task) -> Tensor:
        return matrix

    def value(self, product: Product) -> Tensor:
        return frobenius_penalty(product)

    def _checked(self, collected: Collected) -> Collected:
        return collected
