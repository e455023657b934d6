"""The largest singular value of big matrices, from a few passes over them and without any Gram."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.arithmetic import computes
from rankwise.product.bounds import BLOCK_TERMS, UNIT, blocked, frobenius_norm, worst_case
from rankwise.product.catalogue import MEASURES, Measured
from rankwise.product.ladder import float32_unit
from rankwise.product.product import Product
from rankwise.product.scaling import normalized, scaled, scaled_error

if TYPE_CHECKING:
    from jaxtyping import Float

# Columns that are multiplied at once, and the most passes over the matrix (each in both directions).
BLOCK = 8
MOST_PASSES = 32
# Below this many singular values the whole spectrum costs no more than the iteration.
SMALL = 64
# How often a random start may lie so badly that the bound fails.
CHANCE = 1e-12
# A matrix of a shorter type is raised to float32 once, if the copy takes no more bytes; else in pieces, at every pass.
COPY = 1 << 29
CHUNK = 1 << 24
# What the iteration meets is squared, which stays inside the range of each type between these.
ORDINARY = {torch.float32: (2.0**-50, 2.0**50), torch.float64: (2.0**-400, 2.0**400)}
# The bound is looked for among excesses that fall by this factor, so many times.
GRID, STEPS = 2**-0.5, 120


@computes
@torch.no_grad()
def leading_value(product: Product, *, tolerance: float = 1e-3, seed: int = 0, chance: float = CHANCE) -> Measured:
    """`s_1` of every matrix by block Krylov iteration from a random start, with an error that holds but for a chance.

    The value found is the largest one within the subspace, so never above `s_1` but for rounding. How far below it can
    be follows from the start `G`, `b` normal columns: whatever the leading singular vector `v` is, `|G^T v|^2` is
    chi-squared with `b` degrees of freedom, and less than `x` with a chance of at most
    `(x / 2)^(b/2) / Gamma(b/2 + 1)`. With the block tridiagonal matrix `T` of the iteration, its first and last block
    rows `E_1, E_k` and the triangle `B` of the next block, no singular value whose square `t` has

        |E_1^T (t - T)^-1 E_k B^T|_F < sqrt(x) / |G|

    can have escaped: its vector would have had to be nearly orthogonal to the start.

    Arguments:
        product: single matrices, a product of one factor.
        tolerance: stop when the error is below this share of the value.
        seed: of the random start, which leaves the global random state alone.
        chance: how often, over all seeds, the error may be too small.

    >>> found = leading_value(Product(torch.diag(torch.arange(1.0, 301.0))))
    >>> abs(found.value.item() - 300) <= found.error.item() <= 0.3
    True
    """
    if product.depth != 1:
        raise UserError(
            f"leading_value takes single matrices, {product!r} has {product.depth} factors: use .spectrum()"
        )
    if product.max_rank <= SMALL:
        return MEASURES["operator_norm"].of(product.spectrum())
    if product.dtype != torch.float64:
        found = _iterate(product.left, tolerance, seed, chance)
        if bool(found.value.isfinite().all()):
            return found
    # In float64, and at an ordinary scale: what is still not finite then is NaN or infinite itself.
    ordinary, exponent = normalized(product.to(torch.float64))
    found = _iterate(ordinary.left, tolerance, seed, chance)
    value, error = scaled(found.value[..., None], exponent), scaled_error(found.error[..., None], exponent)
    return Measured(value[..., 0], error=error[..., 0], method=found.method)


def _iterate(matrix: Float[Tensor, "*batch m n"], tolerance: float, seed: int, chance: float) -> Measured:
    """See `leading_value`; NaN where squares would have left the range of the type, or something is not finite."""
    dtype = torch.promote_types(matrix.dtype, torch.float32)
    matrix = matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT
    matrix = matrix.to(dtype) if matrix.numel() * dtype.itemsize <= COPY else matrix
    *batch, rows, columns = matrix.shape
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(columns, BLOCK, generator=generator, dtype=torch.float64, device="cpu").to(matrix.device)
    reach = _least_part(chance) / torch.linalg.matrix_norm(start, 2)
    basis = torch.linalg.qr(start)[0].to(dtype).expand(*batch, columns, BLOCK)
    image = times(matrix, basis)
    largest, (low, high) = image.abs().amax((-2, -1)), ORDINARY[dtype]
    usable = (largest == 0) | (largest >= low) & (largest <= high)
    matrix_usable = usable[..., None, None]
    image = torch.where(matrix_usable, image, 0.0)

    unit = UNIT if dtype == torch.float64 else float32_unit()
    rounding = (blocked(rows) + blocked(columns)) * unit
    value = error = torch.zeros(batch, dtype=torch.float64, device=matrix.device)
    pending = usable
    pulled = basis[..., :0]
    for _ in range(MOST_PASSES):
        new = torch.where(matrix_usable, times(matrix.mT, image), 0.0)
        pulled = torch.cat([pulled, new], -1)
        block, triangle = _next_block(new, basis)
        top, excess = _top_and_excess((basis.mT @ pulled).double(), triangle.double(), reach)
        root, upper = top.sqrt(), (top + excess).sqrt()
        # A matrix that has met the tolerance keeps its answer.
        value = torch.where(pending, root, value)
        error = torch.where(pending, excess / torch.where(upper > 0, upper + root, 1.0), error)
        # Beyond what its blocks lose in rounding, a subspace that the matrix maps to itself has nothing more to give.
        unknown = torch.linalg.matrix_norm(triangle) > rounding * top
        pending = pending & unknown & (error > tolerance * value)
        if not bool(pending.any()) or basis.shape[-1] + BLOCK > columns:
            break
        basis = torch.cat([basis, block], -1)
        image = torch.where(matrix_usable, times(matrix, block), 0.0)
    error = (error + rounding * value).masked_fill(~usable, torch.inf)
    return Measured(value.masked_fill(~usable, torch.nan), error=error, method="krylov")


def _next_block(new: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """`Q` orthonormal and orthogonal to the basis, and `R`, with `new = Q R` but for what lies in the basis."""
    block, triangle = torch.linalg.qr(new - basis @ (basis.mT @ new))
    # Columns that lie in the basis leave nothing but rounding, itself half inside: it takes two more turns to get out.
    for _ in range(2):
        block, again = torch.linalg.qr(block - basis @ (basis.mT @ block))
        triangle = again @ triangle
    return block, triangle


def _top_and_excess(squared: Tensor, triangle: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """The largest eigenvalue within the subspace, and how far above it one outside can be: see `leading_value`."""
    values, vectors = torch.linalg.eigh((squared + squared.mT) / 2)
    first, across = vectors[..., :BLOCK, :], vectors[..., -BLOCK:, :].mT @ triangle.mT
    top = values[..., -1].clamp_min(0)
    # From this distance on the norm is within reach, whatever the vectors are.
    farthest = torch.linalg.matrix_norm(triangle) / reach
    distances = farthest[..., None] * GRID ** torch.arange(STEPS, dtype=values.dtype, device=values.device)
    gaps = (top[..., None] + distances)[..., None] - values[..., None, :]
    weights = torch.where(gaps > 0, 1 / gaps, 0.0)
    norms = torch.linalg.matrix_norm((first[..., None, :, :] * weights[..., None, :]) @ across[..., None, :, :])
    # The nearest distance with nothing beyond it that could have escaped.
    allowed = ((norms < reach) & (distances > 0)).to(torch.int8).cummin(-1).values.sum(-1)
    return top, distances.gather(-1, (allowed - 1).clamp_min(0)[..., None])[..., 0]


def _least_part(chance: float) -> float:
    """The length below which a start's part along any one direction lies with no more than this chance."""
    half = BLOCK / 2
    return math.sqrt(2 * (chance * math.gamma(half + 1)) ** (1 / half))


def times(matrix: Float[Tensor, "*batch m n"], columns: Float[Tensor, "*batch n b"]) -> Float[Tensor, "*batch m b"]:
    """A matrix times a few columns, its sums in blocks; one of a shorter type is raised to that of the columns."""
    if matrix.shape[-1] <= BLOCK_TERMS:
        return matrix.to(columns.dtype) @ columns
    pieces = zip(matrix.split(BLOCK_TERMS, -1), columns.split(BLOCK_TERMS, -2), strict=True)
    total = torch.zeros((), dtype=columns.dtype, device=columns.device)
    for piece, part in pieces:
        total = total + piece.to(columns.dtype) @ part
    return total


@computes
@torch.no_grad()
def outline(product: Product) -> dict[str, Measured]:
    """What can be said of large matrices without their spectra: Frobenius norm, operator norm and stable rank.

    The first is a sum of squares in float64, a slab of rows at a time; the second comes from `leading_value`, and the
    third, `|P|_F^2 / s_1^2`, inherits its error.

    Arguments:
        product: single matrices, a product of one factor.
    """
    largest = leading_value(product)
    matrix = product.left
    frobenius = torch.zeros(product.batch_shape, dtype=torch.float64, device=product.device)
    slabs = matrix.split(max(1, CHUNK // matrix.shape[-1] // max(1, product.count)), -2)
    for slab in slabs:
        frobenius = torch.hypot(frobenius, frobenius_norm(slab.double()))
    share = (sum(map(worst_case, matrix.shape[-2:])) + 4 * len(slabs)) * UNIT
    low, high = (largest.value - largest.error).clamp_min(0), largest.value + largest.error
    rank, least, most = (_ratio(frobenius, size).square() for size in (largest.value, high, low))
    # Where the largest value may be zero, the rank may be anything.
    most = torch.where((low == 0) & (frobenius > 0), product.max_rank, most)
    error = torch.maximum(most - rank, rank - least) + 2 * share * most
    return {
        "frobenius_norm": Measured(frobenius, error=_known(share * frobenius), method="sum of squares"),
        "operator_norm": largest,
        "stable_rank": Measured(rank, error=_known(error), method=largest.method),
    }


def _ratio(norm: Tensor, size: Tensor) -> Tensor:
    """A quotient that is 0 for a zero matrix, and NaN for one that is not finite."""
    return norm / torch.where(size == 0, torch.inf, size)


def _known(error: Tensor) -> Tensor:
    """An error that is infinite where there is none."""
    return error.nan_to_num(torch.inf, posinf=torch.inf)
