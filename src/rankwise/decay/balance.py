"""A penalty on the imbalance of factors, which leaves their product alone to first order."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from rankwise.decay.attachment import OrdinaryDecay
from rankwise.decay.base import Coefficient, Decay
from rankwise.decay.products import Collected, LiveProduct, Target
from rankwise.decay.stacks import PLAIN, Task
from rankwise.errors import UserError
from rankwise.product.multipliers import Multipliers, gathered
from rankwise.product.product import Product
from rankwise.sites.site import RotaryFacts, Site


class BalanceDecay(Decay):
    """A quarter of the squared imbalance of neighbouring factors, `|A^T A - B B^T|_F^2 / 4`.

    With `D = A^T A - B B^T` the gradients are `A D` and `-D B`: they move the factors along their gauge, so that the
    product stays what it is to first order, and `D` decays at the rate of the factors' squared sizes. It keeps factors
    balanced beside Frobenius decay, which does not.

    The gauge is that of the site: the group's where heads share a factor; one scale for each pair of dimensions that a
    rotary embedding turns, so that `D` there is by how much the pair's queries outweigh its keys.

    Arguments:
        target, coefficient, decoupled, model: as for every decay; a coefficient must be given, and the optimizer's own
            weight decay stays where it is.

    >>> layer = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> two, one = torch.tensor([[2.0]]), torch.tensor([[1.0]])
    >>> [each.item() for each in BalanceDecay(layer, coefficient=1.0).gradients(Product(two, one))]
    [6.0, -3.0]
    """

    def __init__(
        self, target: Target, *, coefficient: Coefficient, decoupled: bool | None = None, model: nn.Module | None = None
    ) -> None:
        if coefficient is None:
            raise UserError("a penalty on imbalance is no weight decay of an optimizer to take over: give coefficient=")
        super().__init__(target, coefficient=coefficient, decoupled=decoupled, model=model)

    def attach(self, optimizer: Any, *, ordinary_decay: OrdinaryDecay = "keep") -> Self:
        return super().attach(optimizer, ordinary_decay=ordinary_decay)

    def multipliers(self, first: Tensor, inner: Sequence[Tensor], last: Tensor, task: Task) -> Multipliers:
        found = _imbalances(first, inner, last, _rotary(task.site))
        between = [factor @ found[place + 1] - found[place] @ factor for place, factor in enumerate(inner)]
        return Multipliers(found[0], tuple(between), -found[-1])

    def gradients(self, product: Product, task: Task = PLAIN) -> tuple[Tensor, ...]:
        # Also where the matrix is no larger than its Grams: it does not tell the balance of its factors.
        dtype = torch.promote_types(product.dtype, self.accumulate)
        left, *inner, right = (factor.to(dtype) for factor in product.factors)
        found = self.multipliers(left.mT @ left, inner, right @ right.mT, task)
        whole = (left @ found.first, *found.inner, found.last @ right)
        return tuple(one.sum_to_size(two.shape) for one, two in zip(whole, product.factors, strict=True))

    def value(self, product: Product) -> Tensor:
        return _value(product, None)

    def value_of(self, live: LiveProduct) -> Tensor:
        return _value(live.product(), live.site)

    def alike(self, live: LiveProduct) -> Hashable:
        return _rotary(live.site)

    def _checked(self, collected: Collected) -> Collected:
        alone = [live.name for live in collected.products if len(live.parameters) < 2]
        if alone:
            raise UserError(f"{alone[0]} is a single matrix: only products of two factors or more have a balance")
        return super()._checked(collected)


def _imbalances(first: Tensor, inner: Sequence[Tensor], last: Tensor, rotary: RotaryFacts | None) -> list[Tensor]:
    lefts = [first, *(factor.mT @ factor for factor in inner)]
    rights = [*(factor @ factor.mT for factor in inner), last]
    return [
        _within_gauge(gathered(left, right) - gathered(right, left), rotary)
        for left, right in zip(lefts, rights, strict=True)
    ]


def _within_gauge(imbalance: Tensor, rotary: RotaryFacts | None) -> Tensor:
    """What of an imbalance a move that the site allows can change."""
    if rotary is None:
        return imbalance
    pairs = rotary.index().to(imbalance.device)
    still = torch.ones(imbalance.shape[-1], dtype=torch.bool, device=imbalance.device)
    still[pairs.flatten()] = False
    kept = imbalance * (still[:, None] & still)
    diagonal = (
        imbalance.diagonal(dim1=-2, dim2=-1)[..., pairs].mean(-1, keepdim=True).expand(*imbalance.shape[:-2], -1, 2)
    )
    kept.diagonal(dim1=-2, dim2=-1)[..., pairs] = diagonal
    return kept


def _value(product: Product, site: Site | None) -> Tensor:
    left, *inner, right = (factor.double() for factor in product.factors)
    found = _imbalances(left.mT @ left, inner, right @ right.mT, _rotary(site))
    return torch.stack([each.square().sum() for each in found]).sum() / 4


def _rotary(site: Site | None) -> RotaryFacts | None:
    return None if site is None or site.attention is None or site.kind != "qk" else site.attention.rotary
