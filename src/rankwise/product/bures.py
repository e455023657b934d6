"""The gap between half-sum and nuclear norm as a distance, in which nothing cancels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rankwise.product.guarded import guarded, thin_svd
from rankwise.product.parallel import on_all_cores
from rankwise.product.shapes import broadcast

if TYPE_CHECKING:
    from jaxtyping import Float

# Singular values of the core below this share of the largest are rotated once more, among themselves: the rotation of
# a matrix is exact to roundoff over value, and their own matrix is known to far more digits than they are in the whole.
GRADED_SHARE = 1e-3
# How often that is repeated: down to 1e-24 of the largest, beyond what float64 entries can tell.
GRADED_STEPS = 8
# How far a decomposition may turn two directions of equal value, in units of roundoff.
TURN_ROUNDOFFS = 8.0


class Bures(NamedTuple):
    """Gap, nuclear norm and imbalance of pairs of factors, with error bounds for the first two."""

    gap: Float[Tensor, "*batch"]
    error: Float[Tensor, "*batch"]
    nuclear: Float[Tensor, "*batch"]
    nuclear_error: Float[Tensor, "*batch"]
    imbalance: Float[Tensor, "*batch r r"]
    failures: Mapping[int, str]


@torch.no_grad()
def bures(left: Float[Tensor, "*batch m r"], right: Float[Tensor, "*batch r n"]) -> Bures:
    """Half the squared Bures distance of `A^T A` and `B B^T`, which is the gap, for `A = left` and `B = right`.

    With triangles `T_A^T T_A = A^T A` and `T_B^T T_B = B B^T`,

        gap = min_O |T_A - O T_B|_F^2 / 2 = |X - Y|_F^2 / 2,    X = U^T T_A,  Y = V^T T_B,  U S V^T = svd(T_A T_B^T),

    a sum of squares; and `A^T A - B B^T = X^T X - Y^T Y` is the symmetric part of `(X - Y)^T (X + Y)`. What remains is
    the rounding of the rotations, `d = c u (|A| + |B|)`, hence an error of `sqrt(2 gap) d + d^2`, and what the smallest
    directions that were turned together are off, `r (8 u)^2 |A B| / share`.

    >>> found = bures(torch.tensor([[4.0]]), torch.tensor([[1.0]]))
    >>> found.gap.item(), found.nuclear.item(), found.imbalance.item()
    (4.5, 4.0, 15.0)
    """
    batch = broadcast(left.shape[:-2], right.shape[:-2])
    triangles = _triangle(left.double()), _triangle(right.double().mT)
    rows = max(triangle.shape[-2] for triangle in triangles)
    one, two = (_with_rows(triangle, rows).expand(*batch, rows, left.shape[-1]) for triangle in triangles)
    one, two, values, failures = _aligned(one, two)
    difference = one - two
    gap = difference.square().sum((-2, -1)) / 2
    product_with_sum = difference.mT @ (one + two)
    norms = torch.linalg.matrix_norm(one), torch.linalg.matrix_norm(two)
    unit = torch.finfo(torch.float64).eps
    rounding = 2 * (left.shape[-2] + left.shape[-1] + right.shape[-1]) * unit
    moved = rounding * (norms[0] + norms[1])
    return Bures(
        gap,
        error=((2 * gap).sqrt() * moved + moved.square()).nan_to_num(torch.inf, posinf=torch.inf),
        nuclear=values.sum(-1),
        nuclear_error=(rounding * values.shape[-1] ** 0.5 * norms[0] * norms[1]).nan_to_num(
            torch.inf, posinf=torch.inf
        ),
        imbalance=(product_with_sum + product_with_sum.mT) / 2,
        failures=failures,
    )


def _aligned(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor, Tensor, Mapping[int, str]]:
    """Rotate the rows of both as near to each other as can be: `one @ two^T` becomes diagonal and not negative.

    Also returns that diagonal, the singular values, and the failures (whose rows are NaN).
    """
    decomposition = guarded(thin_svd, one @ two.mT)
    left, values, right = decomposition.outputs
    one, two = left.mT @ one, right @ two
    size = values.shape[-1]
    identity = torch.eye(size, dtype=values.dtype, device=values.device)
    tiny = values < GRADED_SHARE * values[..., :1]
    for _ in range(GRADED_STEPS):
        if not bool(tiny.any()):
            break
        block = torch.where(tiny[..., :, None] & tiny[..., None, :], one @ two.mT, 0.0)
        scale = block.abs().amax((-2, -1), keepdim=True)
        # The rest is aligned already: a multiple of the identity, larger than the block, turns both sides alike.
        block = block / torch.where(scale > 0, scale, 1.0) + 2 * size * identity * ~tiny[..., None]
        left, turned, right = guarded(thin_svd, block).outputs
        one, two = left.mT @ one, right @ two
        inside = torch.where(turned > size, 0.0, turned)
        tiny = (turned <= size) & (inside < GRADED_SHARE * inside.amax(-1, keepdim=True))
    return one, two, values, decomposition.failures


def _triangle(factor: Tensor) -> Tensor:
    """`T` with `T^T T = factor^T factor`, of no more rows than columns."""
    return on_all_cores(_triangular_factor, factor) if factor.shape[-2] > factor.shape[-1] else factor


def _triangular_factor(matrices: Tensor) -> Tensor:
    return torch.linalg.qr(matrices, mode="r").R


def _with_rows(triangle: Tensor, rows: int) -> Tensor:
    return torch.nn.functional.pad(triangle, (0, 0, 0, rows - triangle.shape[-2]))
