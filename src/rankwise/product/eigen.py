"""Eigenvalues of a square product, and how much a value-output circuit copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.arithmetic import computes
from rankwise.product.guarded import guarded
from rankwise.product.product import Product
from rankwise.product.two_factors import two_factors

if TYPE_CHECKING:
    from jaxtyping import Complex, Float


@computes
@torch.no_grad()
def eigenvalues(product: Product) -> Complex[Tensor, "*batch w"]:
    """The eigenvalues of every matrix of a square product, largest modulus first, `w` its narrowest width.

    `L R` and `R L` have the same nonzero eigenvalues, so those of the small matrix `R L` are taken; the other `m - w`
    are zeros. The columns of `L` and rows of `R` are brought to one size first, by powers of two, which changes nothing
    but the rounding. Eigenvalues of matrices far from normal can be much less certain than singular values.

    Arguments:
        product: a stack of square matrices; one that is not finite has NaN eigenvalues.

    >>> eigenvalues(Product(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0, 4.0]]))).tolist()
    [(11+0j)]
    """
    rows, columns = product.shape[-2:]
    if rows != columns:
        raise UserError(f"{product!r} is {rows}x{columns}: only a square product has eigenvalues")
    left, right = two_factors(product, torch.float64)
    small = _turned(left, right).expand(*product.batch_shape, product.max_rank, product.max_rank)
    (values,) = guarded(lambda matrices: (torch.linalg.eigvals(matrices),), small).outputs
    # The modulus of NaN sorts anywhere: a failed matrix is NaN throughout.
    order = values.abs().nan_to_num().argsort(-1, descending=True)
    return values.gather(-1, order)


def copying_score(product: Product) -> Float[Tensor, "*batch"]:
    """`sum_i Re(lambda_i) / sum_i |lambda_i|` of the eigenvalues: 1 copies, -1 suppresses, around 0 rotates or mixes.

    A head that copies raises the logit of the token that it attends to: its full circuit (embedding, value, output,
    unembedding) has positive eigenvalues. Give that circuit, a chain of factors `unembed @ ov @ embed` or its
    transpose, or the value-output product alone as a proxy inside the residual stream. 0 for a zero matrix, NaN where
    it failed.

    >>> copying_score(Product(torch.diag(torch.tensor([3.0, -1.0])))).item()
    0.5
    """
    values = eigenvalues(product)
    total = values.abs().sum(-1)
    return values.real.sum(-1) / torch.where(total == 0, 1.0, total)


def _turned(left: Tensor | None, right: Tensor | None) -> Tensor:
    """The small matrix `R L`, its factors equilibrated."""
    if left is None or right is None:
        matrix = left if right is None else right
        assert matrix is not None
        return matrix
    columns, rows = torch.linalg.vector_norm(left, dim=-2), torch.linalg.vector_norm(right, dim=-1)
    usable = (columns > 0) & (rows > 0) & columns.isfinite() & rows.isfinite()
    exponent = torch.where(usable, ((rows.log2() - columns.log2()) / 2).round(), 0.0)
    scale = torch.exp2(exponent)
    return (right / scale[..., None]) @ (left * scale[..., None, :])
