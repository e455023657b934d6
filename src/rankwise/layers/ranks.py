"""How wide the factors become: a scale that all layers share, and the search for one that meets a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rankwise.errors import UserError

Kind = Literal["linear", "conv", "embedding"]
Shape = tuple[int, int]
Rank = int | tuple[int, ...]
"""The width of a product, or the ranks of a tensor form."""

# The bisection stops when the interval or the distance from the budget is below this, as the paper's does.
RESOLUTION = 1e-6
# A budget that allows wide layers is met below this scale; the paper goes up to 9.
LARGEST_SCALE = 64.0


def smaller_side(kind: Kind, shape: Shape) -> int:
    """The largest rank that a matrix can have: a scale then means the same share of it in every layer."""
    return min(shape)


def output_side(kind: Kind, shape: Shape) -> int:
    """The rows of a convolution's matrix, `c_out k`; the smaller side of any other, as in the paper.

    Where a layer doubles the channels, its rank relative to the largest one is twice that of the others.
    """
    return shape[0] if kind == "conv" else min(shape)


@dataclass(frozen=True, kw_only=True)
class RankRule:
    """What a scale means in a layer, and how a budget is met.

    Arguments:
        side: the rank that a scale of one gives a layer, from its kind and the shape of its matrix.
        nearest: take the scale whose parameters come nearest to a budget, even above it. Otherwise the largest one that
            stays within.
    """

    side: Callable[[Kind, Shape], int] = smaller_side
    nearest: bool = False

    def rank(self, scale: float, kind: Kind, shape: Shape) -> int:
        """The rank of a layer: at least 1.

        >>> RankRule().rank(0.111, "conv", (96, 48)), PAPER_RULE.rank(0.111, "conv", (96, 48))
        (5, 11)
        """
        return max(1, round(scale * self.side(kind, shape)))


PAPER_RULE = RankRule(side=output_side, nearest=True)
"""The rule of Khodak et al. (2021), for their tables of ranks and parameter counts."""


def scale_within(
    count: Callable[[float], int], *, budget: float, dense: int, nearest: bool = False, beyond_one: bool = False
) -> float:
    """The scale at which a net has as many parameters as a budget allows, by bisection.

    Arguments:
        count: the parameters of the whole net at a scale; it must not fall as the scale grows.
        budget: parameters allowed, as a share of the dense net's.
        dense: the parameters of the dense net.
        nearest: take the scale that comes nearest among all that were tried, even above the budget.
        beyond_one: whether scales above one, wide layers, may be tried.

    >>> round(scale_within(lambda scale: 10 + round(100 * scale), budget=0.5, dense=100), 1)
    0.4
    """
    smallest = count(0.0)
    if smallest > budget * dense:
        raise UserError(
            f"a budget of {round(budget * dense):,} parameters ({budget:.4g} of {dense:,}) cannot be met: with rank 1 "
            f"in every selected layer {smallest:,} ({smallest / dense:.4g}) are left; raise it, or select more layers"
        )
    allowed = budget * dense
    low, high = 0.0, 1.0
    while beyond_one and count(high) <= allowed and high < LARGEST_SCALE:
        low, high = high, 2 * high
    tried = {low: count(low)}
    while high - low > RESOLUTION:
        middle = (low + high) / 2
        tried[middle] = count(middle)
        if abs(tried[middle] - allowed) < RESOLUTION * dense:
            break
        if tried[middle] <= allowed:
            low = middle
        else:
            high = middle
    if not nearest:
        tried = {scale: found for scale, found in tried.items() if found <= allowed}
    # Of equals the first that was met, as in the paper.
    return min(tried, key=lambda scale: abs(tried[scale] - allowed))


def factor_parameters(shape: Shape, rank: int, depth: int) -> int:
    """How many numbers the factors of a matrix hold.

    >>> factor_parameters((96, 48), 5, 0), factor_parameters((96, 48), 5, 1)
    (720, 745)
    """
    return rank * sum(shape) + depth * rank * rank
