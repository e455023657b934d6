"""Gradients of functions of a product, as small matrices that multiply its outer factors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from rankwise.product.product import Product

if TYPE_CHECKING:
    from jaxtyping import Float

    AtJunction = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Multipliers:
    """A gradient by a product's factors that never leaves their inner widths: `dA = A F` and `dB = L B`.

    Arguments:
        first: `F`, what the first factor is multiplied by on its right.
        inner: the gradients of the inner factors themselves.
        last: `L`, what the last factor is multiplied by on its left.
    """

    first: Float[Tensor, "*batch r r"]
    inner: tuple[Tensor, ...]
    last: Float[Tensor, "*batch s s"]


def multipliers(
    first: Float[Tensor, "*batch r r"],
    inner: Sequence[Tensor],
    last: Float[Tensor, "*batch s s"],
    at_junction: AtJunction,
) -> Multipliers:
    """The gradients of a function `f` of a product's singular values, from Grams alone.

    Where the chain is narrowest, at `W = P Q`, any such gradient is `df/dW = P X Q` with `X` a function of the Grams
    `P^T P` and `Q Q^T`; it is pulled back from there to every factor, through the inner ones.

    Arguments:
        first: `A_1^T A_1` of the first factor.
        inner: the inner factors.
        last: `A_L A_L^T` of the last factor.
        at_junction: from `(P^T P, Q Q^T)` to `(P^T P X, X Q Q^T)`; the identity for half the squared Frobenius norm.

    Batch axes broadcast. Along an axis that one side of the junction shares, the other side's Gram is summed: a group
    of heads with one key is the one factorization that its concatenation is.

    >>> import torch
    >>> half = multipliers(torch.tensor([[5.0]]), (), torch.tensor([[25.0]]), lambda left, right: (left, right))
    >>> half.first.item(), half.last.item()
    (25.0, 5.0)
    """
    left_grams, right_grams = junction_grams(first, inner, last)
    widths = [gram.shape[-1] for gram in left_grams]
    place = widths.index(min(widths))
    left, right = left_grams[place], right_grams[place]
    to_right, to_left = at_junction(gathered(left, right), gathered(right, left))
    gradients: list[Tensor] = list(inner)
    for position in reversed(range(place)):
        factor = inner[position]
        gradients[position] = left_grams[position] @ factor @ to_left
        to_left = factor @ to_left @ factor.mT
    for position in range(place, len(inner)):
        factor = inner[position]
        gradients[position] = to_right @ factor @ right_grams[position + 1]
        to_right = factor.mT @ to_right @ factor
    return Multipliers(to_left, tuple(gradients), to_right)


def junction_grams(
    first: Float[Tensor, "*batch r r"], inner: Sequence[Tensor], last: Float[Tensor, "*batch s s"]
) -> tuple[list[Tensor], list[Tensor]]:
    """At every junction of a chain the Gram `P^T P` of all that is left of it, and `Q Q^T` of all that is right."""
    left_grams, right_grams = [first], [last]
    for factor in inner:
        left_grams.append(factor.mT @ left_grams[-1] @ factor)
    for factor in reversed(inner):
        right_grams.insert(0, factor @ right_grams[0] @ factor.mT)
    return left_grams, right_grams


def pulled_back(product: Product, gradient: Product) -> tuple[Tensor, ...]:
    """What a gradient `G` by the matrix is by its factors: `(A_1 ... A_{i-1})^T G (A_{i+1} ... A_L)^T` for each.

    `G` is a product itself, and everything is multiplied in the order that costs least, so that a matrix of `G`'s size
    is formed only where that is cheaper than its factors. Factors that a batch shares gather its sum.

    >>> import torch
    >>> p = Product(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0, 4.0]]))
    >>> [each.flatten().tolist() for each in pulled_back(p, p)]
    [[25.0, 50.0], [15.0, 20.0]]
    """
    factors = product.factors
    turned = [factor.mT for factor in factors]
    found = []
    for position, factor in enumerate(factors):
        before, after = turned[:position][::-1], turned[position + 1 :][::-1]
        found.append(Product(*before, *gradient.factors, *after).dense().sum_to_size(factor.shape))
    return tuple(found)


def gathered(gram: Tensor, other: Tensor) -> Tensor:
    """A Gram summed along the batch axes that the other side shares."""
    missing = gram.ndim - other.ndim
    shared = [axis for axis in range(gram.ndim - 2) if axis < missing or other.shape[axis - missing] == 1]
    shared = [axis for axis in shared if gram.shape[axis] > 1]
    return gram.sum(shared, keepdim=True) if shared else gram
