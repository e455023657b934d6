"""The largest singular value of big matrices, from a few passes over them and without any Gram."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.product.arithmetic import computes
from rankwise.product.catalogue import MEASURES, Measured
from rankwise.product.product import Product

if TYPE_CHECKING:
    from jaxtyping import Float

# Columns that are multiplied at once, and the most passes over the matrix in either direction.
BLOCK = 8
MOST_PASSES = 12
# Below this many singular values the whole spectrum costs no more than the iteration.
SMALL = 64
# A low-precision matrix is raised to float32 this many entries at a time.
CHUNK = 1 << 24


@computes
@torch.no_grad()
def leading_value(product: Product, *, tolerance: float = 1e-3, seed: int = 0) -> Measured:
    """`s_1` of every matrix by block Krylov iteration, with the residual of its singular pair as the error.

    For the Ritz triplet `(u, s, v)` with `P v = s u`, some singular value lies within `|P^T u - s v|` of `s`, and `s`
    never exceeds the largest one beyond rounding. That the residual belongs to the *largest* value holds unless the
    random start misses its direction, which for a block of 8 has a chance far below rounding.

    Arguments:
        product: any product; it is never multiplied out.
        tolerance: stop when the residual is below this share of the value.
        seed: of the random start, which leaves the global random state alone.

    >>> found = leading_value(Product(torch.diag(torch.arange(1.0, 301.0))))
    >>> abs(found.value.item() - 300) <= found.error.item() <= 0.3
    True
    """
    if product.max_rank <= SMALL:
        return MEASURES["operator_norm"].of(product.spectrum())
    columns = product.widths[-1]
    block = min(BLOCK, *product.widths)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(columns, block, generator=generator, dtype=_working(product), device="cpu").to(product.device)
    basis = torch.linalg.qr(start.expand(*product.batch_shape, columns, block))[0]
    image = times(product.factors, basis)
    finite = image.isfinite().all(-1).all(-1)
    image = torch.where(finite[..., None, None], image, 0.0)
    value = error = torch.zeros(product.batch_shape, dtype=torch.float64, device=product.device)
    for _ in range(MOST_PASSES):
        left, values, right = torch.linalg.svd(image.double(), full_matrices=False)
        value, top = values[..., 0], left[..., :, :1].to(basis.dtype)
        back = times(product.T.factors, top)
        pair = basis @ right.mT[..., :, :1].to(basis.dtype)
        error = torch.linalg.vector_norm(back.double() - value[..., None, None] * pair.double(), dim=(-2, -1))
        if bool((error <= tolerance * value).all()) or basis.shape[-1] + block > columns:
            break
        new = _orthogonal(times(product.T.factors, image[..., -block:]), basis)
        basis = torch.cat([basis, new], -1)
        image = torch.cat([image, torch.where(finite[..., None, None], times(product.factors, new), 0.0)], -1)
    rounding = sum(product.widths) ** 0.5 * torch.finfo(basis.dtype).eps * value
    failed = ~finite
    return Measured(
        value.masked_fill(failed, torch.nan),
        error=(error + rounding).masked_fill(failed, torch.inf),
        method="krylov",
    )


def _working(product: Product) -> torch.dtype:
    return torch.float64 if product.dtype == torch.float64 else torch.float32


def _orthogonal(block: Tensor, basis: Tensor) -> Tensor:
    for _ in range(2):  # once more, since the first pass leaves what it cancelled
        block = block - basis @ (basis.mT @ block)
    return torch.linalg.qr(block)[0]


def times(factors: tuple[Tensor, ...], columns: Float[Tensor, "*batch n b"]) -> Float[Tensor, "*batch m b"]:
    """The chain times a few columns, from the right."""
    for factor in reversed(factors):
        if factor.dtype == columns.dtype:
            columns = factor @ columns
        else:
            rows = max(1, CHUNK // factor.shape[-1])
            pieces = [piece.to(columns.dtype) @ columns for piece in factor.split(rows, -2)]
            columns = torch.cat(pieces, -2)
    return columns


@computes
@torch.no_grad()
def outline(product: Product) -> dict[str, Measured]:
    """What can be said of large matrices without their spectra: Frobenius norm, operator norm and stable rank.

    The first is a sum of squares in float64, a slab of rows at a time; the second comes from `leading_value`, and the
    third, `|P|_F^2 / s_1^2`, inherits its error.

    Arguments:
        product: single matrices, a product of one factor.
    """
    (matrix,) = product.factors
    rows = max(1, CHUNK // matrix.shape[-1] // max(1, product.count))
    energy = torch.zeros(product.batch_shape, dtype=torch.float64, device=product.device)
    for slab in matrix.split(rows, -2):
        energy = energy + slab.double().square().sum((-2, -1))
    frobenius = energy.sqrt()
    rounding = 2 * torch.finfo(torch.float64).eps * sum(product.widths) ** 0.5 * frobenius
    largest = leading_value(product)
    rank = torch.where(largest.value > 0, energy / largest.value.square(), 0.0)
    share = torch.where(largest.value > 0, largest.error / largest.value, 0.0).clamp_max(0.5)
    return {
        "frobenius_norm": Measured(
            frobenius, error=rounding.nan_to_num(torch.inf, posinf=torch.inf), method="sum of squares"
        ),
        "operator_norm": largest,
        "stable_rank": Measured(
            rank, error=(rank * 3 * share).nan_to_num(torch.inf, posinf=torch.inf), method="krylov"
        ),
    }
