"""Singular values of a product from the two Grams at its narrowest width."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.product.bounds import (
    DECOMPOSITION,
    UNIT,
    accumulation,
    error_of_roots,
    frobenius_norm,
    largest_eigenvalue_bound,
    leaning,
)
from rankwise.product.chain import contraction_error, half_chains
from rankwise.product.estimate import Estimate
from rankwise.product.gram import Half, diagonal, half_gram, squares_in_range
from rankwise.product.guarded import guarded
from rankwise.product.parallel import SMALLEST_SHARE, on_all_cores, share_out
from rankwise.product.product import Product
from rankwise.product.scaling import equilibration

if TYPE_CHECKING:
    from jaxtyping import Float

    from rankwise.product.gram import NormBound


# The small matrices of one part should stay in the cache of a core; a GPU wants large batches instead.
CORE_BYTES = {"cpu": 1 << 20, "cuda": 1 << 30}


@dataclass(frozen=True)
class Squares:
    """Computed squares of the singular values, and what their error bound is made of."""

    values: Float[Tensor, "*batch w"]
    halves: tuple[Half, ...]
    shift: Float[Tensor, "*batch"] | float
    size: Float[Tensor, "*batch"]
    """The Frobenius norm of the matrix whose eigenvalues they are."""

    def error(self, norm_bound: NormBound) -> Float[Tensor, "*batch"]:
        """An absolute bound `t` of `|s^2 - s_true^2|`, the same for all values of a matrix."""
        width = self.values.shape[-1]
        terms, lean = accumulation(width), leaning(width)
        rounding = (terms + DECOMPOSITION) * self.size + lean * self.values[..., 0].clamp_min(0)
        if len(self.halves) == 1:
            return self.halves[0].norm_and_error(norm_bound)[1] + UNIT * rounding
        (left_norm, left_error), (right_norm, right_error) = (half.norm_and_error(norm_bound) for half in self.halves)
        left_norm, right_norm = left_norm + left_error, right_norm + right_error
        right = self.halves[1].gram
        trace = diagonal(right).sum(-1)
        # Cholesky of the right Gram, then two multiplications of its factor with the left one.
        cholesky = (terms * torch.linalg.matrix_norm(right) + lean * right_norm) * left_norm
        products = 2 * left_norm * (terms * (right_norm * trace).sqrt() + lean * right_norm)
        grams = left_error * right_norm + right_error * left_norm + self.shift * left_norm
        return grams + UNIT * (cholesky + products + rounding)


@torch.no_grad()
def gram_values(product: Product, dtype: torch.dtype, tolerance: float, unit: float) -> Estimate:
    """The singular values as square roots of the eigenvalues of `G_left G_right`, through a Cholesky factor of one.

    Where the cheap norm bounds leave an error above the tolerance, the norms of the Grams are computed instead.

    Arguments:
        product: any stack.
        dtype: in which to accumulate the Grams, float32 or float64.
        tolerance: the error, as a share of the largest value, that would do.
        unit: the roundoff of the accumulation.
    """
    halves = [half_gram(half, dtype, unit).flattened(product.batch_shape) for half in half_chains(product) if half]
    parts = _parts(product.count, max(1, CORE_BYTES.get(product.device.type, 1 << 30) // (8 * product.max_rank**2)))
    estimates = share_out(lambda part: _estimate([half[part] for half in halves], tolerance), parts, product.device)
    shape = (*product.batch_shape, product.max_rank)
    values, error = (
        torch.cat([getattr(estimate, name) for estimate in estimates]).reshape(shape) for name in ("values", "error")
    )
    return Estimate(values, error + contraction_error(product))


def _parts(count: int, size: int) -> list[slice]:
    """Slices of about a size, equally long, and as many for each core."""
    cores = torch.get_num_threads() if count >= 2 * SMALLEST_SHARE else 1
    number = max(1, cores * math.ceil(count / (size * cores)))
    edges = [count * place // number for place in range(number + 1)]
    return [slice(start, end) for start, end in pairwise(edges)]


def _estimate(halves: list[Half], tolerance: float) -> Estimate:
    squares = _squares(halves)
    values = squares.values.clamp_min(0).sqrt()
    # What equilibration leaves may be tiny: then the squares, or the norms in their bound, have underflowed.
    safe = torch.stack([half.safe & squares_in_range(half.gram) for half in squares.halves]).all(0)

    def estimate(norm_bound: NormBound) -> Estimate:
        error = error_of_roots(values, squares.error(norm_bound))
        return Estimate(values, torch.where(safe[:, None], error, torch.inf))

    first = estimate(largest_eigenvalue_bound)
    missed = ~first.within(tolerance)
    # Where not even norms as small as the longest column would do, they are not worth computing.
    if not bool(missed.any()) or not bool((missed & estimate(_least_norm).within(tolerance)).any()):
        return first
    second = estimate(largest_eigenvalue)
    return Estimate(values, torch.minimum(first.error, second.error))


def _least_norm(gram: Tensor) -> Tensor:
    return diagonal(gram).amax(-1)


def largest_eigenvalue(gram: Float[Tensor, "*batch r r"]) -> Float[Tensor, "*batch"]:
    """The largest eigenvalue of a symmetric matrix, its own rounding added; infinite where it cannot be computed."""
    (values,) = guarded(_eigenvalues, gram).outputs
    largest = values[..., -1].clamp_min(0)
    bound = largest + UNIT * _solving(gram, largest)
    return torch.where(bound.isfinite(), bound, torch.inf)


def _squares(halves: list[Half]) -> Squares:
    if len(halves) == 1:
        core, shift = halves[0].gram, 0.0
    else:
        left, right = halves
        scale, inverse = equilibration(left.lengths, right.lengths)
        left, right = left.rescaled(scale), right.rescaled(inverse)
        halves = [left, right]
        root, shift = square_root(right.gram)
        core = root.mT @ (left.gram @ root)
    (ascending,) = guarded(_eigenvalues, core).outputs
    return Squares(ascending.flip(-1), tuple(halves), shift, torch.linalg.matrix_norm(core))


def square_root(gram: Float[Tensor, "*batch w w"]) -> tuple[Tensor, Float[Tensor, "*batch"]]:
    """`C` with `C C^T = G` but for rounding, and the norm of what had to be added to `G` to find it.

    A Cholesky factor where there is one; else that of `G + w u max(diag G) I`; else, because rounding has left an
    eigenvalue even lower, the symmetric square root without its negative part.
    """
    flat = gram.reshape(-1, *gram.shape[-2:])
    root, failed = torch.linalg.cholesky_ex(flat)
    shift = torch.zeros(len(flat), dtype=gram.dtype, device=gram.device)
    singular = (failed != 0).nonzero().flatten()
    # A matrix that is not finite has no root: it stays marked by the NaN in it.
    singular = singular[flat[singular].isfinite().all(-1).all(-1)]
    if len(singular):
        lacking = flat[singular]
        added = lacking.shape[-1] * UNIT * diagonal(lacking).amax(-1)
        again, failed = torch.linalg.cholesky_ex(lacking + torch.diag_embed(added[:, None].expand(lacking.shape[:-1])))
        root[singular], shift[singular] = again, added
        stubborn = singular[failed != 0]
        if len(stubborn):
            root[stubborn], shift[stubborn] = _symmetric_root(flat[stubborn])
    return root.reshape(gram.shape), shift.reshape(gram.shape[:-2])


def _symmetric_root(gram: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = guarded(torch.linalg.eigh, gram).outputs
    rounding = UNIT * _solving(gram, values[:, -1].clamp_min(0))
    return vectors * values.clamp_min(0).sqrt()[:, None, :], rounding - values[:, 0].clamp_max(0)


def _solving(matrix: Tensor, largest: Tensor) -> Tensor:
    """By how many units of roundoff a symmetric eigenproblem can be off."""
    width = matrix.shape[-1]
    return (accumulation(width) + DECOMPOSITION) * frobenius_norm(matrix) + leaning(width) * largest


def _eigenvalues(matrices: Tensor) -> tuple[Tensor]:
    return (on_all_cores(torch.linalg.eigvalsh, matrices),)
