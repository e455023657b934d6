"""The gap between decay on two factors and the nuclear norm of their product, between its bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.product.balance import balance
from rankwise.product.product import Product
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class GapBounds(Experiment):
    """`gap = (|A|^2 + |R|^2) / 2 - |A R|_*`, which is `d(A^T A, R R^T)^2 / 2` with the Bures distance, and its bounds.

    With `D = A^T A - R R^T`,

        |D|_*^2 / (4 (|A|^2 + |R|^2))  <=  |D|_*^2 / (4 (|A|^2 + |R|^2 - gap))  <=  gap  <=  |D|_* / 2.

    The upper bound is that of Powers and Stormer, tight where a factor is zero; the lower one is tight for scalars.

    Arguments:
        gap: half the squared Bures distance from its definition, beside half-sum minus nuclear norm.
        upper: `|D|_* / 2`.
        lower: the sharper lower bound.
        simple_lower: the one without the gap in it.
        paper: the paper's own upper bound (its Proposition B.4), `sqrt|D|_* (|A|_* + |R|_*) / 2`.
        imbalance: `|D|_*`.
        holds: whether every inequality does, up to the rounding of the numbers in it.
    """

    gap: SideBySide
    upper: Float[Tensor, "*batch"] = field(kw_only=True)
    lower: Float[Tensor, "*batch"] = field(kw_only=True)
    simple_lower: Float[Tensor, "*batch"] = field(kw_only=True)
    paper: Float[Tensor, "*batch"] = field(kw_only=True)
    imbalance: Float[Tensor, "*batch"] = field(kw_only=True)
    holds: bool = field(kw_only=True)


def gap_bounds(left: Float[Tensor, "*batch m r"], right: Float[Tensor, "*batch r n"]) -> GapBounds:
    """The gap of factors, computed twice, between its bounds, for stacks of any shape.

    >>> found = gap_bounds(torch.tensor([[4.0]]), torch.tensor([[1.0]]))
    >>> found.gap.predicted.item(), found.upper.item(), found.lower.item(), found.holds
    (4.5, 7.5, 4.5, True)
    """
    left, right = left.detach().double(), right.detach().double()
    certificate = balance(Product(left, right))
    grams = left.mT @ left, right @ right.mT
    sum_of_squares = 2 * certificate.half_sum
    imbalance = _nuclear(certificate.imbalance)
    upper, simple = imbalance / 2, _over(imbalance.square(), 4 * sum_of_squares)
    lower = _over(imbalance.square(), 4 * (sum_of_squares - certificate.gap))
    paper = imbalance.sqrt() * (_nuclear(left) + _nuclear(right)) / 2
    slack = certificate.error + 64 * torch.finfo(torch.float64).eps * sum_of_squares
    gap = certificate.gap
    holds = (simple <= lower + slack) & (lower <= gap + slack) & (gap <= upper + slack) & (gap <= paper + slack)
    # The root of the inner matrix loses half the digits of what is small in it: this is the definition, not the way.
    root = _root(grams[0])
    distance = sum_of_squares - 2 * _root(root @ grams[1] @ root).diagonal(dim1=-2, dim2=-1).sum(-1)
    return GapBounds(
        SideBySide(distance / 2, simulated=gap),
        upper=upper,
        lower=lower,
        simple_lower=simple,
        paper=paper,
        imbalance=imbalance,
        holds=bool(holds.all()),
    )


def _nuclear(matrices: Tensor) -> Tensor:
    return torch.linalg.svdvals(matrices).sum(-1)


def _over(one: Tensor, two: Tensor) -> Tensor:
    return torch.where(two > 0, one / torch.where(two > 0, two, 1.0), 0.0)


def _root(matrices: Tensor) -> Tensor:
    """The square root of a matrix that is symmetric and not negative."""
    values, vectors = torch.linalg.eigh((matrices + matrices.mT) / 2)
    return (vectors * values.clamp_min(0).sqrt()[..., None, :]) @ vectors.mT
