"""Sums of powers of singular values straight from small Grams, with an error, where no spectrum is needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.product.arithmetic import computes
from rankwise.product.product import Product
from rankwise.product.two_factors import two_factors

if TYPE_CHECKING:
    from jaxtyping import Float

# Grams answer where they hold the sum to this share of it; a gauge that is worse than that is left to the spectrum.
GRAM_TOLERANCE = 1e-9
# Beyond these products of squared norms a square may have been lost to underflow or overflow.
SAFE_RANGE = (1e-250, 1e250)


@dataclass(frozen=True)
class Moment:
    """A sum of powers of the singular values of every matrix, with an absolute error bound."""

    value: Float[Tensor, "*batch"]
    error: Float[Tensor, "*batch"] = field(kw_only=True)


@computes
@torch.no_grad()
def second_moment(product: Product) -> Moment | None:
    """`sum s_i^2 = |A B|_F^2 = <A^T A, B B^T>` in float64, or None where the Grams cannot hold it to 1e-9.

    Each Gram entry is off by at most `n u |a_i| |a_j|` for sums of `n` terms, so that the result is off by at most
    `c u prod |A_l|_F^2` with `c` the sum of all widths, twice. A change has a norm only above its floor: None as well.

    >>> second_moment(Product(torch.ones(3, 1), torch.ones(1, 2))).value.item()
    6.0
    """
    if product.start is not None:
        return None
    left, right = two_factors(product, torch.float64)
    if left is None or right is None:
        matrix = left if right is None else right
        assert matrix is not None
        value = matrix.square().sum((-2, -1))
    else:
        value = ((left.mT @ left) * (right @ right.mT)).sum((-2, -1))
    value = value.expand(product.batch_shape).clamp_min(0)
    size = value.new_ones(())
    for factor in product.factors:
        size = size * factor.double().square().sum((-2, -1))
    error = 2 * sum(product.widths) * torch.finfo(torch.float64).eps * size.expand(product.batch_shape)
    low, high = SAFE_RANGE
    # Comparisons with NaN are false: a matrix that is not finite keeps its NaN here, and does not send the rest away.
    unsure = (error > GRAM_TOLERANCE * value) | (size < low) | (size > high)
    return None if bool(unsure.any()) else Moment(value, error=error)
