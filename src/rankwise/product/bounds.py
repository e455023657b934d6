"""How far rounding can move a computed spectrum: the constants, and how they turn into an error of each value.

A sum of `k` terms rounds by at most `k + 2` units, whatever order the machine adds it up in. The long sums, over the
rows of a factor, are cut into blocks of our own, which round by `blocked(k)` at the worst. Elsewhere roundings are
taken to have signs of their own and to reach `accumulation(k)` units, the probabilistic bound at eight standard
deviations, on the Frobenius norm; where they all lean the same way (equal entries, large means), what they move is a
part of rank one, and `leaning(k)` more units on the 2-norm make up the worst case.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float

UNIT = 2.0**-53
"""The unit roundoff of float64."""

# LAPACK and cuSOLVER decompose a k x k matrix with a backward error of a few units per column.
DECOMPOSITION = 10.0

# Bounds are evaluated in floating point themselves; this covers their own rounding, and that of float32 Grams.
MARGIN = 1.01


# So many terms of a long sum are added up in one multiplication; the results of the multiplications one by one.
BLOCK_TERMS = 256


def blocked(terms: int) -> float:
    """The most units of roundoff by which a sum in blocks can be off, relative to the norms of its two vectors.

    >>> blocked(16), blocked(4096)
    (19.0, 274.0)
    """
    return worst_case(min(terms, BLOCK_TERMS)) + math.ceil(terms / BLOCK_TERMS)


def worst_case(terms: int) -> float:
    """The most units of roundoff by which a sum can be off, in any order, relative to the norms of its two vectors."""
    return terms + 2.0


def accumulation(terms: int) -> float:
    """Units of roundoff by which a sum of so many terms can be off, where they have signs of their own.

    >>> accumulation(16), accumulation(6400)
    (18.0, 640.0)
    """
    return min(worst_case(terms), 8.0 * math.sqrt(terms))


def leaning(terms: int) -> float:
    """How many more units there can be where all roundings lean the same way, up to the worst case.

    >>> leaning(16), leaning(6400)
    (0.0, 5762.0)
    """
    return worst_case(terms) - accumulation(terms)


def largest_eigenvalue_bound(gram: Float[Tensor, "*batch r r"]) -> Float[Tensor, "*batch"]:
    """An upper bound of the largest eigenvalue of a symmetric matrix, from its trace and Frobenius norm alone.

    With mean `a = tr(G) / r` and variance `v = |G|_F^2 / r - a^2` of the eigenvalues, `a + sqrt((r - 1) v)`
    (Wolkowicz and Styan); never more than the Frobenius norm, and exact for rank one and for multiples of the identity.

    >>> round(float(largest_eigenvalue_bound(torch.eye(4, dtype=torch.float64))), 6)
    1.01
    """
    size = gram.shape[-1]
    mean = gram.diagonal(dim1=-2, dim2=-1).mean(-1)
    variance = (torch.linalg.matrix_norm(gram).square() / size - mean.square()).clamp_min(0)
    # The variance is a difference of numbers near the square of the mean: its rounding is counted before the root.
    variance = variance + 4 * size * UNIT * mean.square()
    bound = mean + ((size - 1) * variance).sqrt() if size > 1 else mean
    return MARGIN * bound.clamp_min(0)


def frobenius_norm(matrices: Float[Tensor, "*batch rows columns"]) -> Float[Tensor, "*batch"]:
    """The Frobenius norm, also where the squares of the entries would leave the range of float64.

    The length of the rows' lengths, so that no sum is longer than a row or a column.

    >>> frobenius_norm(torch.tensor([[3e-200, 4e-200]], dtype=torch.float64))
    tensor(5.0000e-200, dtype=torch.float64)
    """
    unit = _unit(matrices)
    lengths = torch.linalg.vector_norm(matrices / unit[..., None, None], dim=-1)
    return unit * torch.linalg.vector_norm(lengths, dim=-1)


def column_lengths(matrices: Float[Tensor, "*batch rows columns"]) -> Float[Tensor, "*batch columns"]:
    """The length of every column, also where the squares of its entries would leave the range of float64."""
    return frobenius_norm(matrices.mT[..., None])


def _unit(matrices: Tensor) -> Tensor:
    """The largest entry of each matrix in magnitude, or 1 where it is zero (or where nothing can be scaled by it)."""
    largest = matrices.abs().amax((-2, -1))
    return torch.where((largest > 0) & largest.isfinite(), largest, 1.0)


def error_of_roots(
    values: Float[Tensor, "*batch k"], squared_error: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch k"]:
    """The error of singular values whose squares are known to an absolute error `t`.

    The true value lies between `low = sqrt(max(s^2 - t, 0))` and `high = sqrt(s^2 + t)`, so that

        |s - s_true| <= max(s - low, high - s) = t / (s + low) where s^2 >= t, and at most sqrt(t) below.

    >>> values = torch.tensor([2.0, 0.1], dtype=torch.float64)
    >>> error_of_roots(values, torch.tensor(0.04, dtype=torch.float64)).round(decimals=6).tolist()
    [0.010025, 0.123607]
    """
    error = squared_error[..., None].expand(values.shape)
    low = (values.square() - error).clamp_min(0).sqrt()
    high = (values.square() + error).sqrt()
    bound = torch.where(low > 0, error / (values + low), torch.maximum(values, high - values))
    return bound + 4 * UNIT * values
