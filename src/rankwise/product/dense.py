"""Singular values of a product multiplied out: the last resort, and the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.product.bounds import DECOMPOSITION, MARGIN, UNIT, accumulation, worst_case
from rankwise.product.estimate import Estimate
from rankwise.product.guarded import guarded
from rankwise.product.parallel import on_all_cores
from rankwise.product.product import Product

if TYPE_CHECKING:
    from jaxtyping import Float


@torch.no_grad()
def dense_values(product: Product) -> Estimate:
    """The singular values of the matrices themselves, in float64.

    The multiplication errs by at most `c u | |A_1| ... |A_k| |_F`, which a gauge between the factors inflates less
    than their norms; the SVD by `c u s_1`.
    """
    full = product.to(torch.float64).dense()
    (values,) = guarded(_singular_values, full).outputs
    rows, columns = full.shape[-2:]
    rounding = (accumulation(rows * columns) + DECOMPOSITION) * UNIT * values[..., :1]
    error = MARGIN * (multiplication_error(product)[..., None] + rounding)
    return Estimate(values[..., : product.max_rank], error.expand(*values.shape[:-1], product.max_rank))


@torch.no_grad()
def multiplication_error(product: Product) -> Float[Tensor, "*batch"]:
    """What multiplying the product out in float64 can add to a singular value; much cheaper than the SVD."""
    if product.depth == 1:
        return torch.zeros(product.batch_shape, dtype=torch.float64, device=product.device)
    absolute = Product(*(factor.double().abs() for factor in product.factors)).dense()
    terms = sum(map(worst_case, product.widths[1:-1]))
    return terms * UNIT * torch.linalg.matrix_norm(absolute)


def _singular_values(matrices: Tensor) -> tuple[Tensor]:
    return (on_all_cores(torch.linalg.svdvals, matrices),)
