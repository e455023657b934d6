"""Moves of the factors that leave the product alone, and the projections and weightings built on them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.arithmetic import computes
from rankwise.product.measures import first_reaching, relative, shares
from rankwise.product.product import Product
from rankwise.product.vectors import svd

if TYPE_CHECKING:
    from jaxtyping import Float

# A covariance may miss symmetry and positive semi-definiteness by this share of its largest eigenvalue: it was
# accumulated in floating point.
COVARIANCE_TOLERANCE = 1e-4


@torch.no_grad()
def balanced(product: Product) -> Product:
    """The same matrices with balanced factors, of the same depth, widths and types.

    `A = U S^{1/L}`, `B = S^{1/L} V^T` and `S^{1/L}` in between for `L` factors: neighbours satisfy `A^T A = B B^T`, and
    the half-sum of squared norms falls by the gap of `balance`, to the nuclear norm. A factor that a group shares
    becomes one for each matrix of the group (`balanced_group` keeps it shared). Widths above the rank are padded with
    zeros.

    >>> p = Product(torch.tensor([[4.0]]), torch.tensor([[1.0]])).balanced()
    >>> p.left.item(), p.right.item()
    (2.0, 2.0)
    """
    if product.depth == 1:
        return product
    triplets = svd(product)
    roots = triplets.values ** (1 / product.depth)
    widths = product.widths
    left = _padded(triplets.left * roots[..., None, :], widths[0], widths[1])
    right = _padded((triplets.right * roots[..., None, :]).mT, widths[-2], widths[-1])
    diagonal = torch.diag_embed(roots)
    inner = [_padded(diagonal, *widths[place : place + 2]) for place in range(1, product.depth - 1)]
    factors = [factor.to(old.dtype) for factor, old in zip([left, *inner, right], product.factors, strict=True)]
    return Product(*factors, start=product.start)


@torch.no_grad()
def truncated(product: Product, *, rank: int | None = None, energy: float | None = None) -> Product:
    """The best approximation of a given rank, or of the least rank that keeps a share of the energy, balanced.

    The energy of rank `k` is `sum_{i<=k} s_i^2 / sum_i s_i^2`. Where the ranks of a batch differ, the factors are as
    wide as the largest needs, and the others end in zero columns. Two factors in the type of the product, whatever the
    depth.

    Arguments:
        product: any stack.
        rank: the rank to keep, for all matrices; or
        energy: the share of the energy to keep, above 0 and at most 1.

    >>> truncated(Product(torch.diag(torch.tensor([3.0, 1.0]))), energy=0.9).dense().tolist()
    [[3.0, 0.0], [0.0, 0.0]]
    """
    if (rank is None) == (energy is None):
        raise UserError(
            "truncated needs one of rank= and energy=: for example truncated(rank=8) or truncated(energy=0.95)"
        )
    triplets = svd(product)
    values = triplets.values
    if rank is not None:
        if rank < 1:
            raise UserError(f"truncated needs a rank of at least 1, got {rank}")
        if rank > values.shape[-1]:
            warnings.warn(f"rank={rank} has no effect: {product!r} has no more than {values.shape[-1]}", stacklevel=2)
        keep = torch.full(values.shape[:-1], min(rank, values.shape[-1]), device=values.device)
    else:
        keep = _energy_ranks(values, energy)
    width = max([1, *keep.flatten().tolist()])
    roots = values[..., :width].sqrt()
    # A failed matrix stays NaN throughout: zeros would pass for an answer.
    kept = torch.arange(width, device=values.device) < keep[..., None]
    roots = torch.where(kept | roots.isnan(), roots, 0.0)
    left = triplets.left[..., :width] * roots[..., None, :]
    right = triplets.right[..., :width] * roots[..., None, :]
    return Product(left.to(product.dtype), right.mT.to(product.dtype), start=product.start)


@computes
@torch.no_grad()
def weighted(product: Product, left: Tensor | None = None, right: Tensor | None = None) -> Product:
    """The product seen through activations, `C_l^{1/2} P C_r^{1/2}`, its outer factors in float64.

    `C_l` and `C_r` are the covariances (or second moments) of what meets the rows and the columns; the roots are the
    symmetric ones, so that rows and columns keep their meaning. Where a factor `F F^T` of a covariance is at hand,
    `Product(F.mT, *p.factors)` has the same singular values without the cost of a root.

    Arguments:
        product: any stack.
        left: `[*batch, m, m]`, symmetric and positive semi-definite, or None to leave the rows alone.
        right: `[*batch, n, n]`, likewise for the columns.

    >>> weighted(Product(torch.eye(2)), left=torch.diag(torch.tensor([4.0, 9.0]))).dense().tolist()
    [[2.0, 0.0], [0.0, 3.0]]
    """
    if left is None and right is None:
        warnings.warn("weighted() without a covariance has no effect: give left= or right=", stacklevel=2)
        return product
    factors = list(product.factors)
    if left is not None:
        factors[0] = _root(left, product.shape[-2], "left") @ factors[0].double()
    if right is not None:
        factors[-1] = factors[-1].double() @ _root(right, product.shape[-1], "right")
    return Product(*factors, is_sum=product.is_sum)


@computes
def transform(product: Product, move: Float[Tensor, "*batch w w"], *, at: int = 0) -> Product:
    """Insert `G` and its inverse at a junction: the same product, `... A_at G, G^{-1} A_{at+1} ...`.

    Arguments:
        product: two factors or more.
        move: an invertible `G`; batch axes broadcast. The inverse is applied in float64, and the results have the type
            that the factors and the move promote to.
        at: the junction, 0 between the first two factors.

    >>> moved = transform(Product(torch.ones(1, 1), torch.ones(1, 1)), torch.tensor([[2.0]]))
    >>> moved.left.item(), moved.right.item()
    (2.0, 0.5)
    """
    if not 0 <= at < product.depth - 1:
        raise UserError(f"{product!r} has {product.depth - 1} junctions between factors: there is none at {at}")
    width = product.widths[at + 1]
    if move.shape[-2:] != (width, width):
        raise UserError(f"a move at junction {at} of {product!r} must be {width}x{width}, got {tuple(move.shape)}")
    factors = list(product.factors)
    dtype = torch.promote_types(product.dtype, move.dtype)
    after, info = torch.linalg.solve_ex(move.double(), factors[at + 1].double())
    if bool(info.any()):
        raise UserError("the move is singular: a gauge move needs an invertible matrix")
    factors[at] = (factors[at].double() @ move.double()).to(dtype)
    factors[at + 1] = after.to(dtype)
    return Product(*factors, start=product.start, is_sum=product.is_sum)


def _padded(matrices: Tensor, rows: int, columns: int) -> Tensor:
    extra = (0, columns - matrices.shape[-1], 0, rows - matrices.shape[-2])
    return torch.nn.functional.pad(matrices, extra) if any(extra) else matrices


def _energy_ranks(values: Tensor, energy: float | None) -> Tensor:
    if energy is None or not 0 < energy <= 1:
        raise UserError(f"truncated needs an energy above 0 and at most 1, got {energy}")
    ranks = first_reaching(shares(relative(values).square()), energy)
    return ranks.nan_to_num(0.0).long()


def _root(covariance: Tensor, size: int, side: str) -> Tensor:
    """The symmetric square root of a covariance, or one line that says why it is none."""
    if covariance.shape[-2:] != (size, size):
        raise UserError(f"the {side} covariance must be {size}x{size} for this product, got {tuple(covariance.shape)}")
    if not bool(covariance.isfinite().all()):
        raise UserError(f"the {side} covariance holds NaN or Inf: leave out the samples that produced them")
    covariance = covariance.double()
    symmetric = (covariance + covariance.mT) / 2
    values, vectors = torch.linalg.eigh(symmetric)
    allowed = COVARIANCE_TOLERANCE * values.abs().amax(-1)
    if bool(((covariance - symmetric).abs().amax((-2, -1)) > allowed).any()):
        raise UserError(f"the {side} covariance is not symmetric: give X^T X / n, not the data or a cross-covariance")
    if bool((values.amin(-1) < -allowed).any()):
        least, largest = values.min().item(), values.max().item()
        raise UserError(
            f"the {side} covariance has a negative eigenvalue ({least:.3g}, largest {largest:.3g}): "
            "it must be positive semi-definite"
        )
    return (vectors * values.clamp_min(0).sqrt()[..., None, :]) @ vectors.mT
