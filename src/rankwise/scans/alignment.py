"""How far the leading directions of a change lie in the leading space of what it started from."""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.numbers import bound, number
from rankwise.product.product import Product
from rankwise.product.vectors import SingularVectors

# The leading directions that are compared.
ALIGNED = 8


def alignment(change: Product, before: Product) -> list[dict[str, float | None]]:
    """For every matrix of a stack the overlap of the leading left and right directions, and what chance would give.

    `|U_k^T V_k|_F^2 / k` for the `k` leading vectors of the change and of the start: 1 where they span the same space,
    0 where they are orthogonal, and `k / width` on average for random directions. Since that is `tr(P Q) / k` for the
    projectors on both spaces, it errs by at most the sum of the sines of the angles that the two spaces are off.

    Arguments:
        change, before: stacks of the same shape; of a matrix with fewer than `k` values all are taken.
    """
    k = min(ALIGNED, change.max_rank, before.max_rank)
    moved, stood = (_leading(product, k) for product in (change, before))
    columns = {
        "left": _overlap(moved.left, stood.left, k),
        "right": _overlap(moved.right, stood.right, k),
        "error": (_off(moved, k) + _off(stood, k)).clamp_max(1.0),
    }
    rows = {name: column.expand(change.batch_shape).flatten().tolist() for name, column in columns.items()}
    chances = {"left_chance": k / change.shape[-2], "right_chance": k / change.shape[-1]}
    return [
        {
            "left": number(rows["left"][at]),
            "right": number(rows["right"][at]),
            "error": bound(rows["error"][at]),
            **chances,
        }
        for at in range(change.count)
    ]


def _leading(product: Product, k: int) -> SingularVectors:
    # One more, so that the gap behind the last of them is known.
    return product.svd(min(k + 1, product.max_rank))


def _overlap(one: Tensor, two: Tensor, k: int) -> Tensor:
    return (one[..., :k].mT @ two[..., :k]).square().sum((-2, -1)) / k


def _off(vectors: SingularVectors, k: int) -> Tensor:
    """The sine of the largest angle between the space of the leading `k` vectors and the true one."""
    if vectors.values.shape[-1] > k:
        return vectors.subspace_error(k)
    # All there are: behind the last value there is nothing but zeros.
    error, gap = vectors.value_error.amax(-1), vectors.values[..., -1]
    return torch.where(gap > error, 2**0.5 * error / (gap - error).clamp_min(1e-300), 1.0).clamp_max(1.0)
