"""Polar decay: every singular value falls by the same, also where only directions count."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from rankwise.decay.attachment import OrdinaryDecay
from rankwise.decay.base import Coefficient, Decay
from rankwise.decay.nuclear import joined
from rankwise.decay.products import Target
from rankwise.decay.stacks import PLAIN, Scale, Task
from rankwise.errors import UserError
from rankwise.product.multipliers import Multipliers, gathered, junction_grams
from rankwise.product.penalties import nuclear_penalty
from rankwise.product.polar import shrinking
from rankwise.product.product import Product

if TYPE_CHECKING:
    from jaxtyping import Float


class PolarDecay(Decay):
    """A step of the product along its polar factor, `W <- W - rate * coefficient * U V^T` for `W = U S V^T`.

    Every singular value falls by the same amount, `rate * coefficient`, however the factors are scaled: with
    `X = (B B^T A^T A)^{-1/2}` both factors take half of it, `A (1 - a X / 2)` and `(1 - a X / 2) B`. Nuclear decay, a
    gradient by the factors, moves a singular value `s` of balanced factors by about `2 s` times as much.

    It is no gradient of anything in the factors, so it is always decoupled. Values below half a step fall by less, so
    that none overshoots; those below `1e-4` of the factors' sizes, whose directions Grams do not hold, slow down
    likewise. A direction in which one factor is zero is left alone.

    >>> layer = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)).double()
    >>> for parameter in layer.parameters():
    ...     _ = torch.nn.init.constant_(parameter, 2.0)
    ...     parameter.grad = torch.zeros_like(parameter)
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    >>> decay = PolarDecay(layer, coefficient=0.1).attach(optimizer)
    >>> optimizer.step(); round((layer[1].weight @ layer[0].weight).item(), 3)
    3.99
    """

    accumulate = torch.float64

    def __init__(
        self,
        target: Target,
        *,
        coefficient: Coefficient | None = None,
        model: nn.Module | None = None,
    ) -> None:
        super().__init__(target, coefficient=coefficient, decoupled=True, model=model)

    def attach(self, optimizer: Any, *, ordinary_decay: OrdinaryDecay = "refuse") -> Self:
        if not self.decoupled:
            raise UserError("PolarDecay is a step of its own and has no gradient: it cannot be coupled")
        return super().attach(optimizer, ordinary_decay=ordinary_decay)

    def add_gradients(self) -> None:
        raise UserError("PolarDecay is a step of its own and has no gradient to add: attach(optimizer)")

    def multipliers(self, first: Tensor, inner: Sequence[Tensor], last: Tensor, task: Task) -> Multipliers:
        lefts, rights = junction_grams(first, inner, last)
        step = _largest(task.scales, first.device)
        share = 0.5 / len(lefts)
        found = [
            share * shrinking(gathered(left, right), gathered(right, left), share * step)
            for left, right in zip(lefts, rights, strict=True)
        ]
        between = [found[place] @ factor + factor @ found[place + 1] for place, factor in enumerate(inner)]
        return Multipliers(found[0], tuple(between), found[-1])

    def matrix_gradient(self, matrix: Float[Tensor, "*batch m n"], task: Task) -> Tensor:
        wide = matrix.double()
        tall = wide if wide.shape[-2] >= wide.shape[-1] else wide.mT
        identity = torch.eye(tall.shape[-1], dtype=wide.dtype, device=wide.device)
        moved = tall @ shrinking(tall.mT @ tall, identity, 0.5 * _largest(task.scales, wide.device))
        return moved if tall is wide else moved.mT

    def gradients(self, product: Product, task: Task = PLAIN) -> tuple[Tensor, ...]:
        """What every factor is moved along, for steps of the given sizes."""
        if product.depth == 1:
            return (self.matrix_gradient(product.left, task),)
        # Also where the matrix is no larger than its Grams: a step of the matrix says nothing of its factors.
        left, *inner, right = (factor.double() for factor in product.factors)
        found = self.multipliers(left.mT @ left, inner, right @ right.mT, task)
        return left @ found.first, *found.inner, found.last @ right

    def value(self, product: Product) -> Tensor:
        return nuclear_penalty(joined(product))


def _largest(scales: Sequence[Scale], device: torch.device) -> Tensor:
    """The largest of the scales without their signs, where it is."""
    sizes = (torch.as_tensor(scale, dtype=torch.float64, device=device).abs() for scale in scales)
    return reduce(torch.maximum, sizes)
