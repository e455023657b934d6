"""Exact rescaling by powers of two: it costs no rounding, and it takes diagonal gauges out of a product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.product.product import Product

if TYPE_CHECKING:
    from jaxtyping import Float, Int

# Between these exponents a factor is left alone: squares of its entries, and their products, stay inside float64.
ORDINARY = 60
# What scaling a number may round where float64 has no normal numbers left.
LEAST = 2.0**-1073


def power_of_two(exponent: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`2^exponent` in float64, exact because it is written as bits; exponents are clamped to the normal range.

    >>> power_of_two(torch.tensor([0, -3]))
    tensor([1.0000, 0.1250], dtype=torch.float64)
    """
    return ((exponent.to(torch.int64).clamp(-1022, 1023) + 1023) << 52).view(torch.float64)


def exponent_of(values: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """The binary exponent of each value, 0 for zero, NaN and Inf."""
    values = values.double()
    return torch.frexp(torch.where(values.isfinite(), values, 0.0)).exponent.to(torch.int64)


def equilibration(
    left: Float[Tensor, "*left w"], right: Float[Tensor, "*right w"]
) -> tuple[Float[Tensor, "*batch w"], Float[Tensor, "*batch w"]]:
    """Powers of two `d` and `1/d` that make the inner columns of two factors equally long, from their lengths.

    A column that is zero on one side meets nothing: both scales are zero there, which leaves the product as it is.

    >>> equilibration(torch.tensor([4.0, 1.0, 0.0]).double(), torch.tensor([0.25, 1.0, 7.0]).double())[0]
    tensor([0.2500, 1.0000, 0.0000], dtype=torch.float64)
    """
    exponent = torch.div(exponent_of(right) - exponent_of(left), 2, rounding_mode="floor")
    # A length that is NaN or Inf is no zero: its matrix has to come out as not finite.
    alive = (left != 0) & (right != 0)
    return torch.where(alive, power_of_two(exponent), 0.0), torch.where(alive, power_of_two(-exponent), 0.0)


def normalized(product: Product) -> tuple[Product, Int[Tensor, "*batch"] | None]:
    """The product with factors of ordinary size, and the exponent of what was taken out of each matrix.

    Only float64 factors and long chains can leave the range in which squares and products are safe; the others, and
    factors of ordinary size, are returned as they are with `None`.
    """
    if product.dtype != torch.float64 and product.depth <= 2:
        return product, None
    exponents = [exponent_of(factor.abs().amax((-2, -1))) for factor in product.factors]
    if all(bool((exponent.abs() <= ORDINARY).all()) for exponent in exponents):
        return product, None
    # In two steps, because the power itself may be outside the range that float64 holds.
    factors = [
        factor.double() * power_of_two(-(e // 2))[..., None, None] * power_of_two(-(e - e // 2))[..., None, None]
        for factor, e in zip(product.factors, exponents, strict=True)
    ]
    total = exponents[0]
    for exponent in exponents[1:]:
        total = total + exponent
    return Product(*factors), total.expand(product.batch_shape)


def scaled(values: Float[Tensor, "*batch k"], exponent: Int[Tensor, "*batch"] | None) -> Float[Tensor, "*batch k"]:
    """Values with the power of two put back, in steps so that only a result outside float64 overflows."""
    if exponent is None:
        return values
    remaining = exponent[..., None]
    while bool((remaining != 0).any()):
        step = remaining.clamp(-1000, 1000)
        values = values * power_of_two(step)
        remaining = remaining - step
    return values


def scaled_error(error: Float[Tensor, "*batch k"], exponent: Int[Tensor, "*batch"] | None) -> Float[Tensor, "*batch k"]:
    """Errors of values with the power of two put back: those of the values, and what scaling may have rounded."""
    return error if exponent is None else torch.where(error > 0, scaled(error, exponent) + LEAST, error)
