"""The shape of a chain of factors: where it is narrowest, and which factors are worth multiplying first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.product.bounds import MARGIN, UNIT, column_lengths, frobenius_norm, worst_case
from rankwise.product.product import Product
from rankwise.product.scaling import equilibration

if TYPE_CHECKING:
    from jaxtyping import Float


def half_chains(product: Product) -> tuple[list[Tensor], list[Tensor]]:
    """The factors left and right of the narrowest width `w`, those of the right transposed and counted from the end.

    With `(A_1, ..., A_b)` and `(B_1, ..., B_c)` returned, the product is `A_1 ... A_b @ (B_1 ... B_c)^T`, and both
    chains end in `w` columns. A half is empty where the narrowest width is an end of the product. Wide inner
    dimensions are multiplied away first (see `contracted`), in the type of the factors that meet there.

    >>> left, right = half_chains(Product(torch.ones(5, 4), torch.ones(4, 2), torch.ones(2, 3), torch.ones(3, 6)))
    >>> [tuple(factor.shape) for factor in left], [tuple(factor.shape) for factor in right]
    ([(5, 4), (4, 2)], [(6, 3), (3, 2)])
    """
    factors = contracted([compact(factor) for factor in product.factors])
    place = narrowest(factors)
    return list(factors[:place]), [factor.mT for factor in reversed(factors[place:])]


def narrowest(factors: Sequence[Tensor]) -> int:
    """How many factors stand left of the narrowest width of the chain."""
    widths = [factors[0].shape[-2], *(factor.shape[-1] for factor in factors)]
    return widths.index(min(widths))


def contracted(factors: Sequence[Float[Tensor, "*batch rows columns"]]) -> list[Tensor]:
    """Multiply away every inner width that is larger than both its neighbours, the widest first.

    The matrix that results is smaller than either of the two factors, so everything after it is cheaper. Afterwards
    the widths fall towards the narrowest one from both ends. The multiplication is in float64.
    """
    chain = list(factors)
    while inner := [
        place
        for place in range(1, len(chain))
        if chain[place].shape[-2] > max(chain[place - 1].shape[-2], chain[place].shape[-1])
    ]:
        place = max(inner, key=lambda place: chain[place].shape[-2])
        chain[place - 1 : place + 1] = [chain[place - 1].double() @ chain[place].double()]
    return chain


def contraction_error(product: Product) -> Float[Tensor, "*batch 1"] | float:
    """By how much `contracted` can move a singular value: zero where it has nothing to multiply.

    With every inner width equilibrated, each multiplication adds at most `c u |A_1|_F ... |A_k|_F`.
    """
    factors = [compact(factor) for factor in product.factors]
    steps = len(factors) - len(contracted([factor.to("meta") for factor in factors]))
    if not steps:
        return 0.0
    factors = [factor.double() for factor in factors]
    for place in range(len(factors) - 1):
        one, two = factors[place : place + 2]
        lengths = column_lengths(one), column_lengths(two.mT)
        scale, inverse = equilibration(*lengths)
        factors[place : place + 2] = [one * scale[..., None, :], two * inverse[..., None]]
    norm = frobenius_norm(factors[0])
    for factor in factors[1:]:
        norm = norm * frobenius_norm(factor)
    return MARGIN * steps * worst_case(max(product.widths)) * UNIT * norm[..., None]


def compact(factor: Tensor) -> Tensor:
    """The factor without the copies of an expanded batch axis: a stride of zero becomes a size of one.

    >>> compact(torch.ones(3, 1, 2, 2).expand(3, 4, 2, 2)).shape
    torch.Size([3, 1, 2, 2])
    """
    for axis in range(factor.ndim - 2):
        if factor.stride(axis) == 0 and factor.shape[axis] > 1:
            factor = factor.narrow(axis, 0, 1)
    return factor


def identity(size: int, like: Tensor) -> Tensor:
    """A float64 identity on the device of a tensor: what an empty half of a chain stands for."""
    return torch.eye(size, dtype=torch.float64, device=like.device)
