"""The leading singular triplets of big matrices, by projection on a subspace found with random columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.product.arithmetic import computes
from rankwise.product.leading import times
from rankwise.product.product import Product

if TYPE_CHECKING:
    from jaxtyping import Float

# Columns beyond those asked for, and passes of power iteration: the subspace then holds the leading directions of
# slowly decaying spectra too.
OVERSAMPLING = 16
POWER_PASSES = 2


@dataclass(frozen=True)
class Projected:
    """The best approximation of a matrix within a subspace: `P ~ left diag(values) right^T`.

    The values never exceed the true ones beyond rounding. What the approximation misses is known exactly, whatever the
    subspace: `|P - left diag(values) right^T|_F^2 = energy - sum values^2`.

    Arguments:
        left, values, right: the triplets, largest first.
        energy: `|P|_F^2`.
        residual: `|P^T u_i - s_i v_i|` for each triplet; some singular value lies that close to `s_i`.
    """

    left: Float[Tensor, "m k"]
    values: Float[Tensor, " k"] = field(kw_only=True)
    right: Float[Tensor, "n k"] = field(kw_only=True)
    energy: float = field(kw_only=True)
    residual: Float[Tensor, " k"] = field(kw_only=True)

    def missed(self, rank: int) -> float:
        """The Frobenius norm of what the leading `rank` triplets leave out."""
        kept = self.values[:rank].double().square().sum().item()
        return max(0.0, self.energy - kept) ** 0.5


@computes
@torch.no_grad()
def project(product: Product, k: int, *, seed: int = 0) -> Projected:
    """The leading `k` triplets of one matrix within a random subspace refined by two power passes.

    Arguments:
        product: one matrix, of any depth; it is never multiplied out.
        k: how many triplets; where the matrix has hardly more, the whole decomposition is computed.
        seed: of the random columns; the global random state is left alone.

    >>> found = project(Product(torch.diag(torch.tensor([3.0, 2.0, 1.0]))), 2)
    >>> [round(value, 6) for value in found.values.tolist()], round(found.missed(2), 6)
    ([3.0, 2.0], 1.0)
    """
    assert not product.batch_shape
    rows, columns = product.shape
    dtype = torch.float64 if product.dtype == torch.float64 or min(rows, columns) <= 1024 else torch.float32
    product = product.to(dtype)
    width = k + OVERSAMPLING
    if 2 * width >= min(rows, columns):
        left, values, right = torch.linalg.svd(product.dense(), full_matrices=False)
        energy = values.double().square().sum().item()
        error = torch.full_like(values[:k], torch.finfo(dtype).eps * (rows + columns) ** 0.5) * values[0]
        return Projected(left[:, :k], values=values[:k], right=right.mT[:, :k], energy=energy, residual=error)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(columns, width, generator=generator, dtype=dtype, device="cpu").to(product.device)
    forward, backward = product.factors, product.T.factors
    basis = torch.linalg.qr(times(forward, start))[0]
    for _ in range(POWER_PASSES):
        basis = torch.linalg.qr(times(backward, basis))[0]
        basis = torch.linalg.qr(times(forward, basis))[0]
    across = times(backward, basis)
    right, values, turned = torch.linalg.svd(across, full_matrices=False)
    left = basis @ turned.mT
    residual = torch.linalg.vector_norm(times(forward, right) - left * values, dim=0)
    energy = sum(slab.double().square().sum().item() for slab in product.dense().split(4096))
    return Projected(left[:, :k], values=values[:k], right=right[:, :k], energy=energy, residual=residual[:k])
