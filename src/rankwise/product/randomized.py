"""The leading singular triplets of big matrices, by projection on a subspace found with random columns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.arithmetic import computes
from rankwise.product.leading import CHUNK, times
from rankwise.product.product import Product
from rankwise.product.scaling import ORDINARY, exponent_of, power_of_two, scaled

if TYPE_CHECKING:
    from jaxtyping import Float

# Columns beyond those asked for, and passes of power iteration: the subspace then holds the leading directions of
# slowly decaying spectra too.
OVERSAMPLING = 16
POWER_PASSES = 2
# Up to this many singular values float64 costs little more than float32.
SMALL = 1024


@dataclass(frozen=True)
class Projected:
    """An approximation of a matrix within a subspace, `P ~ left diag(values) right^T`, largest values first.

    The values never exceed the true ones but for rounding, and what the approximation misses is known whatever the
    subspace. How near the single values are to the true ones is not: `residual` says near which true values they are.

    Arguments:
        left, values, right: the triplets.
        energy: `|P|_F^2`.
        tail: the Frobenius norm of what all triplets together leave out.
        residual: `|P v_i - s_i u_i|` for each triplet, while `P^T u_i = s_i v_i`; some true singular value lies within
            that distance of `s_i`.
    """

    left: Float[Tensor, "m k"]
    values: Float[Tensor, " k"] = field(kw_only=True)
    right: Float[Tensor, "n k"] = field(kw_only=True)
    energy: float = field(kw_only=True)
    tail: float = field(kw_only=True)
    residual: Float[Tensor, " k"] = field(kw_only=True)

    def missed(self, rank: int) -> float:
        """The Frobenius norm of what the leading `rank` triplets leave out."""
        return math.hypot(self.tail, _norm(self.values[rank:]))


@computes
@torch.no_grad()
def project(product: Product, k: int, *, seed: int = 0) -> Projected:
    """The leading `k` triplets of one matrix within a random subspace refined by two power passes.

    Arguments:
        product: one matrix, a product of one factor.
        k: how many triplets; where the matrix has hardly more, the whole decomposition is computed.
        seed: of the random columns; the global random state is left alone.

    >>> found = project(Product(torch.diag(torch.tensor([3.0, 2.0, 1.0]))), 2)
    >>> [round(value, 6) for value in found.values.tolist()], round(found.missed(2), 6)
    ([3.0, 2.0], 1.0)
    """
    if product.depth != 1 or product.batch_shape:
        raise UserError(f"project takes one single matrix, not {product!r}")
    rows, columns = product.shape
    if not 1 <= k <= min(rows, columns):
        raise UserError(f"{product!r} has {min(rows, columns)} singular triplets: ask for 1 to so many, got k={k}")
    double = product.dtype == torch.float64 or min(rows, columns) <= SMALL
    matrix = product.left.to(torch.float64 if double else torch.float32)
    exponent = exponent_of(matrix.abs().amax())
    if abs(exponent.item()) <= ORDINARY:
        return _project(matrix, k, seed)
    found = _project((matrix.double() * power_of_two(-exponent)).to(matrix.dtype), k, seed)
    back = [found.values.double(), found.residual, torch.tensor([found.tail, found.energy**0.5], dtype=torch.float64)]
    values, residual, norms = (scaled(part.cpu(), exponent.cpu()) for part in back)
    tail, norm = norms.tolist()
    return replace(
        found, values=values.to(found.values), residual=residual.to(found.residual), energy=norm * norm, tail=tail
    )


def _project(matrix: Tensor, k: int, seed: int) -> Projected:
    rows, columns = matrix.shape
    width = k + OVERSAMPLING
    if 2 * width >= min(rows, columns):
        return _whole(matrix, k)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(columns, width, generator=generator, dtype=torch.float64, device="cpu")
    basis = torch.linalg.qr(times(matrix, start.to(matrix)))[0]
    for _ in range(POWER_PASSES):
        basis = torch.linalg.qr(times(matrix.mT, basis))[0]
        basis = torch.linalg.qr(times(matrix, basis))[0]
    across = times(matrix.mT, basis)
    right, values, turned = torch.linalg.svd(across, full_matrices=False)
    left = basis @ turned.mT
    residual = torch.linalg.vector_norm((times(matrix, right) - left * values).double(), dim=0)
    energy = outside = 0.0
    step = max(1, CHUNK // columns)
    for slab, within in zip(matrix.split(step), basis.split(step), strict=True):
        energy = math.hypot(energy, _norm(slab))
        # Measured, not taken from the energies: the difference of those would drown a small rest.
        outside = math.hypot(outside, _norm(slab - within @ across.mT))
    return Projected(
        left[:, :k],
        values=values[:k],
        right=right[:, :k],
        energy=energy**2,
        tail=math.hypot(outside, _norm(values[k:])),
        residual=residual[:k],
    )


def _whole(matrix: Tensor, k: int) -> Projected:
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    rounding = torch.finfo(matrix.dtype).eps * sum(matrix.shape) ** 0.5 * values[0].double()
    return Projected(
        left[:, :k],
        values=values[:k],
        right=right.mT[:, :k],
        energy=_norm(values) ** 2,
        tail=_norm(values[k:]),
        residual=rounding.expand(k),
    )


def _norm(tensor: Tensor) -> float:
    return torch.linalg.vector_norm(tensor.double()).item()
