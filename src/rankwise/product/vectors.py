"""Singular triplets of a product, with errors of the vectors from the gaps between the values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.arithmetic import computes
from rankwise.product.guarded import guarded, thin_svd
from rankwise.product.product import Product
from rankwise.product.triangular import reduce_with_ends

if TYPE_CHECKING:
    from jaxtyping import Float

# How far the columns of the computed vectors may be from orthonormal, in units of roundoff for each dimension.
ORTHOGONALITY_ROUNDOFFS = 8.0


@dataclass(frozen=True)
class SingularVectors:
    """Leading singular triplets `A v_i = s_i u_i` of every matrix of a stack, in float64.

    The sign of each pair is fixed: the entry of largest magnitude of `u_i` (the first of several) is positive.

    Arguments:
        left: the left vectors, as columns.
        values: the singular values, largest first.
        right: the right vectors, as columns.
        value_error: an absolute bound for every value.
        left_error: a bound for the sine of the angle between every left vector and the true one. It is 1, nothing being
            known, where a value is as close to its neighbours (or to zero) as its error: see `subspace_error` then.
        right_error: the same for the right vectors.
        failures: why a matrix has no triplets, by its flattened index; its vectors and values are NaN, its errors inf.
    """

    left: Float[Tensor, "*batch m k"]
    values: Float[Tensor, "*batch k"] = field(kw_only=True)
    right: Float[Tensor, "*batch n k"] = field(kw_only=True)
    value_error: Float[Tensor, "*batch k"] = field(kw_only=True)
    left_error: Float[Tensor, "*batch k"] = field(kw_only=True)
    right_error: Float[Tensor, "*batch k"] = field(kw_only=True)
    failures: Mapping[int, str] = field(kw_only=True, default_factory=dict)

    def subspace_error(self, size: int) -> Float[Tensor, "*batch"]:
        """A bound for the sine of the largest angle between the leading `size` vectors of a side and the true ones.

        `sqrt(2) error / (s_size - s_{size+1} - error)`, at most 1: a cluster of values has a well-defined space, though
        its single vectors have no direction. The value after the last known one counts as known only if it was asked
        for.
        """
        count = self.values.shape[-1]
        if not 1 <= size < count:
            raise UserError(f"subspace_error needs 1 <= size < {count}, the number of triplets, got {size}")
        error = self.value_error.amax(-1)
        gap = self.values[..., size - 1] - self.values[..., size]
        return _sine(error, gap, max(self.left.shape[-2], self.right.shape[-2]))


@computes
@torch.no_grad()
def svd(product: Product, k: int | None = None) -> SingularVectors:
    """The leading `k` singular triplets of every matrix, all by default, with gap-based errors.

    The ends of the product are reduced by QR, the small core in the middle is decomposed, and its vectors are carried
    back. The result is the exact decomposition of a product moved by at most `e`, the error bound of the values, so
    that (Wedin) the sine of the angle of vector `i` is at most `sqrt(2) e / (gap_i - e)`, where `gap_i` is its distance
    to the nearest other singular value, the zeros of the null spaces included.

    Arguments:
        product: any stack; a matrix that is not finite is marked under `failures`, and nothing raises.
        k: how many triplets, from the largest value on.

    >>> triplets = svd(Product(torch.tensor([[0.0, -2.0], [1.0, 0.0]])))
    >>> triplets.values.tolist(), triplets.left.abs().tolist(), triplets.right[:, 0].tolist()
    ([2.0, 1.0], [[1.0, 0.0], [0.0, 1.0]], [0.0, -1.0])
    """
    count = product.max_rank
    k = count if k is None else k
    if not 1 <= k <= count:
        raise UserError(f"{product!r} has {count} singular triplets: ask for 1 to {count}, got k={k}")
    spectrum = product.spectrum(method="qr")
    reduced = reduce_with_ends(product)
    core = reduced.left @ reduced.right.mT
    decomposition = guarded(thin_svd, core.expand(*product.batch_shape, *core.shape[-2:]))
    left, values, right = decomposition.outputs
    left, right = reduced.left_end @ left[..., :k], reduced.right_end @ right.mT[..., :k]
    sign = _signs(left)
    failures = {**decomposition.failures, **spectrum.failures}
    value_error, vector_error = _errors(product, values, spectrum.error)
    failed = torch.zeros(product.count, dtype=torch.bool, device=product.device)
    failed[list(failures)] = True
    failed = failed.reshape(product.batch_shape)[..., None]
    vector_error = vector_error.masked_fill(failed, torch.inf)[..., :k]
    return SingularVectors(
        (left * sign).masked_fill(failed[..., None], torch.nan),
        values=values.masked_fill(failed, torch.nan)[..., :k],
        right=(right * sign).masked_fill(failed[..., None], torch.nan),
        value_error=value_error.masked_fill(failed, torch.inf)[..., :k],
        left_error=vector_error,
        right_error=vector_error,
        failures=failures,
    )


def _errors(product: Product, values: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """The bounds of the values, made uniform over a matrix since its perturbation has one norm, and of the vectors."""
    error = bound.amax(-1)
    distances = (values[..., :, None] - values[..., None, :]).abs()
    distances.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    gap = distances.amin(-1)
    rows, columns = product.shape[-2:]
    if max(rows, columns) > values.shape[-1]:
        gap = torch.minimum(gap, values)
    return error[..., None].expand_as(values), _sine(error[..., None], gap, max(rows, columns))


def _sine(error: Tensor, gap: Tensor, size: int) -> Tensor:
    """Wedin's bound, with what the computed vectors lack of orthonormality; 1 where the gap is within the error."""
    known = gap > error
    sine = 2**0.5 * error / torch.where(known, gap - error, 1.0)
    orthogonality = ORTHOGONALITY_ROUNDOFFS * size * torch.finfo(torch.float64).eps
    return torch.where(known, (sine + orthogonality).clamp_max(1.0), 1.0)


def _signs(left: Tensor) -> Tensor:
    """The sign of the entry of largest magnitude of every column."""
    largest = left.abs().nan_to_num().argmax(-2, keepdim=True)
    return torch.where(left.gather(-2, largest) < 0, -1.0, 1.0).to(left.dtype)
