"""The Frobenius norm of a product from the small Grams of its factors, with an error and without a spectrum."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.product.arithmetic import computes
from rankwise.product.bounds import MARGIN, UNIT, frobenius_norm, worst_case
from rankwise.product.chain import contraction_error, half_chains
from rankwise.product.gram import diagonal, half_gram
from rankwise.product.product import Product
from rankwise.product.scaling import normalized, scaled, scaled_error

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Norm:
    """A norm of every matrix of a stack, with an absolute error bound; NaN and infinite where something is."""

    value: Float[Tensor, "*batch"]
    error: Float[Tensor, "*batch"] = field(kw_only=True)


@computes
@torch.no_grad()
def frobenius(product: Product) -> Norm:
    """`|P|_F`, with `|P|_F^2 = <G_left, G_right>` for the Grams of both halves where the product is narrowest.

    In float64 the square is off by at most `c u |A_1|_F^2 ... |A_k|_F^2`, which says little where the factors' norms
    say little of the product's; for two factors `(sum_i |a_i| |b_i|)^2` takes its place, the columns and rows paired.

    >>> frobenius(Product(torch.tensor([[3.0], [4.0]]), torch.tensor([[2.0]]))).value
    tensor(10., dtype=torch.float64)
    """
    ordinary, exponent = normalized(product.detach())
    halves = [half for half in half_chains(ordinary) if half]
    if sum(map(len, halves)) == 1:
        square = size = _square(halves[0][0])
    else:
        grams = [half_gram(half, torch.float64, UNIT).gram for half in halves]
        square = (grams[0] * grams[1]).sum(-1).sum(-1) if len(grams) == 2 else diagonal(grams[0]).sum(-1)
        if [len(half) for half in halves] == [1, 1]:
            size = (diagonal(grams[0]) * diagonal(grams[1])).sqrt().sum(-1).square()
        else:
            size = reduce(torch.mul, map(_square, ordinary.factors))
    terms = 2 * (sum(map(worst_case, ordinary.widths)) + worst_case(ordinary.max_rank))
    value = square.clamp_min(0).sqrt()
    moved = MARGIN * terms * UNIT * size
    # |sqrt(x + d) - sqrt(x)| is at most d / sqrt(x), and at most sqrt(d).
    error = torch.minimum(moved / torch.where(value > 0, value, 1.0), moved.sqrt())
    error = torch.where(value > 0, error, moved.sqrt())[..., None] + contraction_error(ordinary)
    value, error = (part.expand(*product.batch_shape, 1) for part in (value[..., None], error))
    error = scaled_error(error, exponent)[..., 0].nan_to_num(torch.inf, posinf=torch.inf)
    return Norm(scaled(value, exponent)[..., 0], error=error)


def _square(factor: Tensor) -> Tensor:
    return frobenius_norm(factor.double()).square()
