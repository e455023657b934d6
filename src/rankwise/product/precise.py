"""High relative accuracy of tiny singular values: scaled columns, pivoted QR and one-sided Jacobi.

Drmac's method for a product: with the columns of the left half scaled to length one and their lengths moved to the
right half, `R` from a pivoted QR of that half, and Jacobi rotations on the columns of `X = L P R^T`, every step errs by
a small share of each *column*. Singular values are then right to `c u kappa`, however small they are, where `kappa` is
the condition that is left when the columns have been scaled.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rankwise.product.bounds import (
    DECOMPOSITION,
    MARGIN,
    UNIT,
    accumulation,
    column_lengths,
    error_of_roots,
    frobenius_norm,
)
from rankwise.product.chain import contraction_error
from rankwise.product.estimate import Estimate
from rankwise.product.guarded import guarded
from rankwise.product.product import Product
from rankwise.product.scaling import exponent_of, power_of_two
from rankwise.product.triangular import Triangle, equilibrated, triangles

# QR has sorted and graded the columns: they turn orthogonal in a few sweeps, unless they are noise and never do.
MOST_SWEEPS = 15

# Squares of columns between 2^-480 and 2^480 stay inside float64: rotations and reflections start at the upper end.
TOP_EXPONENT = 400
# Columns this much shorter than the longest are out of their reach.
SHORTEST = 2.0**-800


@torch.no_grad()
def precise_values(product: Product) -> Estimate:
    """The singular values with an error relative to each of them, where the scaled columns are well conditioned."""
    left, right = equilibrated(*triangles(product))
    width = product.max_rank
    absolute = _absolute_error(left, right)
    lengths = exponent_of(column_lengths(left.matrix))
    unit_left = left.rescaled(power_of_two(-lengths))
    graded = right.matrix * power_of_two(lengths)[..., None, :]
    unit_right = right.rescaled(power_of_two(-exponent_of(column_lengths(right.matrix))))

    batch = product.batch_shape
    graded = graded.expand(*batch, *graded.shape[-2:]).reshape(-1, *graded.shape[-2:])
    unit_columns = unit_left.matrix.expand(*batch, *left.matrix.shape[-2:]).reshape(-1, *left.matrix.shape[-2:])
    triangle, order = pivoted_triangle(graded)
    meeting = torch.take_along_dim(unit_columns, order[:, None, :], -1) @ triangle.mT
    values, cosine, residual = jacobi(meeting)

    sizes = accumulation(width) * UNIT * frobenius_norm(unit_columns) * math.sqrt(width)
    relative = _share(unit_left.error, unit_left.matrix) + _share(
        unit_right.error + accumulation(width**2) * UNIT * math.sqrt(width), unit_right.matrix
    )
    relative = relative.expand(batch).reshape(-1)
    relative = relative + _share(sizes, meeting / _nonzero(column_lengths(triangle.mT))[:, None, :])
    turning = (accumulation(width**2) + DECOMPOSITION) * UNIT * math.sqrt(width)
    sizes_met = column_lengths(meeting)
    relative = relative + _share(turning, meeting / _nonzero(sizes_met)[:, None, :]) + width * cosine
    within = sizes_met.amin(-1) >= SHORTEST * sizes_met.amax(-1)
    # Beyond a tenth the first-order bound says nothing: the absolute one is left.
    relative = torch.where((relative < 0.1) & within, MARGIN * relative / (1 - relative), torch.inf)
    rest = turning * values[:, :1] + error_of_roots(values, residual)
    absolute = absolute.expand(batch).reshape(-1)[:, None] + rest
    error = torch.minimum(torch.where(values > 0, relative[:, None] * values, torch.inf), MARGIN * absolute)
    error = error.reshape(*batch, width) + contraction_error(product)
    return Estimate(values.reshape(*batch, width), torch.where(error.isnan(), torch.inf, error))


def pivoted_triangle(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """`R` and the column order `p` of `A[:, p] = Q R` with the longest remaining column first, for a batch.

    >>> triangle, order = pivoted_triangle(torch.diag(torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64))[None])
    >>> triangle[0].diagonal().abs().round(decimals=12).tolist(), order[0].tolist()
    ([3.0, 2.0, 1.0], [1, 2, 0])
    """
    work, back = _at_the_top(matrices)
    count, rows, columns = work.shape
    each = torch.arange(count, device=work.device)
    order = torch.arange(columns, device=work.device).repeat(count, 1)
    for place in range(min(rows, columns)):
        # Lengths are taken anew in every step: updating them is cheaper, but loses the small ones.
        pivot = _lengths(work[:, place:, place:]).argmax(-1) + place
        for table in (work.mT, order):
            first, second = table[:, place].clone(), table[each, pivot].clone()
            table[:, place], table[each, pivot] = second, first
        column = work[:, place:, place].clone()
        length = torch.linalg.vector_norm(column, dim=-1)
        head = torch.where(column[:, 0] < 0, -length, length)
        column[:, 0] += head
        column = column / _nonzero(torch.linalg.vector_norm(column, dim=-1))[:, None]
        rest = work[:, place:, place:]
        rest -= 2 * column[:, :, None] * (column[:, None, :] @ rest)
        work[:, place + 1 :, place] = 0
    return work[:, : min(rows, columns)].triu() * back[:, None, None], order


def jacobi(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Singular values by rotating pairs of columns until they are orthogonal.

    All pairs of a round are disjoint and turn at once, over the whole batch.

    Arguments:
        matrices: `[count, rows, columns]`.

    Returns:
        values `[count, columns]`, largest first, and how far from orthogonal the columns of each matrix still are: the
        largest cosine between two of them, and the Frobenius norm of their inner products.

    >>> values, _, _ = jacobi(torch.tensor([[[1.0, 1.0], [0.0, 1e-20]]], dtype=torch.float64))
    >>> [f"{value:.12e}" for value in values[0].tolist()]
    ['1.414213562373e+00', '7.071067811865e-21']
    """
    columns = matrices.shape[-1]
    work, back = _at_the_top(matrices)
    enough = UNIT * max(4.0, math.sqrt(matrices.shape[-2]))
    schedule = rounds(columns)
    for _ in range(MOST_SWEEPS):
        turned = [_rotate(work, one, two, enough) for one, two in schedule]
        if not any(bool((cosine > enough).any()) for cosine in turned):
            break
    lengths = _lengths(work)
    directions = work / _nonzero(lengths)[:, None, :]
    cosines = (directions.mT @ directions).tril(-1).abs()
    scale = lengths * back[:, None]
    inner = cosines * scale[:, :, None] * scale[:, None, :]
    values = scale.sort(-1, descending=True).values
    return values, cosines.amax((-2, -1)), math.sqrt(2) * frobenius_norm(inner)


def rounds(columns: int) -> list[tuple[list[int], list[int]]]:
    """A tournament: disjoint pairs in every round, and every pair of columns in exactly one of them.

    >>> rounds(3)
    [([1], [2]), ([0], [2]), ([0], [1])]
    """
    if columns < 2:
        return []
    seats: list[int | None] = [*range(columns), *([None] if columns % 2 else [])]
    schedule = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = [
            (a, b) for a, b in zip(seats[:half], reversed(seats[half:]), strict=True) if a is not None and b is not None
        ]
        schedule.append(([a for a, _ in pairs], [b for _, b in pairs]))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return schedule


def _at_the_top(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Copies whose largest entries have squares just inside float64, and the powers of two that undo the scaling."""
    exponent = (TOP_EXPONENT - exponent_of(matrices.abs().amax((-2, -1)))).clamp(-1000, 1000)
    return matrices * power_of_two(exponent)[:, None, None], power_of_two(-exponent)


def _rotate(work: Tensor, one: list[int], two: list[int], enough: float) -> Tensor:
    """Turn each pair of columns in place so that they become orthogonal; returns the largest cosine found."""
    first, second = work[:, :, one], work[:, :, two]
    inner = (first * second).sum(1)
    first_length, second_length = _lengths(first), _lengths(second)
    cosine = inner / _nonzero(first_length) / _nonzero(second_length)
    turn = cosine.abs() > enough
    # (b^2 - a^2) / (2 <a, b>), written with quotients so that squares of tiny columns do not underflow.
    ratio = second_length / _nonzero(first_length)
    zeta = (ratio - 1 / _nonzero(ratio)) / (2 * torch.where(turn, cosine, 1.0))
    tangent = torch.where(zeta < 0, -1.0, 1.0) / (zeta.abs() + torch.hypot(torch.ones_like(zeta), zeta))
    tangent = torch.where(turn, tangent, 0.0)
    cos = 1 / torch.hypot(torch.ones_like(tangent), tangent)
    sin = cos * tangent
    work[:, :, one] = cos[:, None] * first - sin[:, None] * second
    work[:, :, two] = sin[:, None] * first + cos[:, None] * second
    return cosine.abs().amax(-1)


def _absolute_error(left: Triangle, right: Triangle) -> Tensor:
    width = left.matrix.shape[-1]
    left_size, right_size = frobenius_norm(left.matrix), frobenius_norm(right.matrix)
    reduction = left.error * right_size + right.error * left_size + left.error * right.error
    steps = accumulation(width**2) + accumulation(width) * math.sqrt(width)
    return reduction + UNIT * steps * left_size * right_size


def _share(error: Tensor | float, matrix: Tensor) -> Tensor:
    """An error as a share of the smallest singular value of a matrix, infinite where that is lost in rounding."""
    (values,) = guarded(lambda batch: (torch.linalg.svdvals(batch),), matrix).outputs
    uncertain = (accumulation(matrix.shape[-1] ** 2) + DECOMPOSITION) * UNIT * values[..., 0]
    smallest = values[..., -1] - uncertain - error
    return torch.where(smallest > 0, error / smallest, torch.inf)


def _lengths(matrices: Tensor) -> Tensor:
    return torch.linalg.vector_norm(matrices, dim=-2)


def _nonzero(values: Tensor) -> Tensor:
    return torch.where(values == 0, 1.0, values)
