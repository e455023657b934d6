"""Balance along a chain of factors, where decay means a Schatten quasi-norm instead of the nuclear norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.product.arithmetic import computes
from rankwise.product.balance import Balance, check_own_factors, junction
from rankwise.product.product import Product

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class ChainBalance:
    """How far `L` factors are from sharing their product evenly, for every matrix of a stack.

        (1/L) sum_l |A_l|_F^2  >=  sum_i s_i^(2/L),

    with equality if all neighbours are balanced, `A_l^T A_l = A_{l+1} A_{l+1}^T`. So decay on the factors is decay of
    the product's Schatten-2/L quasi-norm: the nuclear norm for two factors, and nearer to the rank the longer the
    chain.

    Arguments:
        junctions: the balance of each pair of neighbours.
        mean_square: `(1/L) sum_l |A_l|_F^2`.
        schatten: `sum_i s_i^(2/L)`.
        error: an absolute bound for the error of `schatten`, and so of the gap.
        failures: why a matrix has no balance, by its flattened index.
    """

    junctions: tuple[Balance, ...]
    mean_square: Float[Tensor, "*batch"] = field(kw_only=True)
    schatten: Float[Tensor, "*batch"] = field(kw_only=True)
    error: Float[Tensor, "*batch"] = field(kw_only=True)
    failures: Mapping[int, str] = field(kw_only=True, default_factory=dict)

    @property
    def gap(self) -> Float[Tensor, "*batch"]:
        """`mean_square - schatten`; for two factors `balance` has it without cancellation."""
        return self.mean_square - self.schatten

    @property
    def relative(self) -> Float[Tensor, "*batch"]:
        """The gap over the mean square, between 0 and 1; 0 for zero factors."""
        return self.gap / torch.where(self.mean_square == 0, 1.0, self.mean_square)


@computes
@torch.no_grad()
def chain_balance(product: Product) -> ChainBalance:
    """The balance of a product of any number of factors from two on.

    >>> chain = chain_balance(Product(*[2 * torch.eye(3)] * 3))
    >>> chain.mean_square.item(), round(chain.schatten.item(), 9), [float(j.gap) for j in chain.junctions]
    (12.0, 12.0, [0.0, 0.0])
    """
    check_own_factors(product)
    depth = product.depth
    spectrum = product.spectrum(method="qr")
    power = 2 / depth
    low = (spectrum.values - spectrum.error).clamp_min(0).pow(power).sum(-1)
    high = (spectrum.values + spectrum.error).pow(power).sum(-1)
    schatten = spectrum.values.pow(power).sum(-1)
    squares = torch.zeros(product.batch_shape, dtype=torch.float64, device=product.device)
    for factor in product.factors:
        squares = squares + factor.double().square().sum((-2, -1))
    return ChainBalance(
        tuple(junction(left, right) for left, right in pairwise(product.factors)),
        mean_square=squares / depth,
        schatten=schatten,
        error=torch.maximum(high - schatten, schatten - low).nan_to_num(torch.inf, posinf=torch.inf),
        failures=spectrum.failures,
    )
