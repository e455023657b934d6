"""CP: a tensor as a sum of outer products."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.product import Product
from rankwise.product.tensor_forms import TensorForm, all_but_one, check_rows

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True, repr=False)
class CP(TensorForm):
    """A sum of `R` outer products, `X = sum_r a_r o b_r o c_r`, with the vectors as the columns of one core a mode.

    With the Grams `G_i = A_i^T A_i` and `*` elementwise, `|X|^2` is the sum of the entries of `G_1 * ... * G_N`, and
    the gradient of half of it for `A_i` is `A_i (G_1 * ... without G_i ... * G_N)`.

    Arguments:
        cores: for each mode a matrix `[size, R]`.

    >>> CP((torch.randn(5, 2), torch.randn(4, 2), torch.randn(3, 2)))
    CP(5x4x3 of rank 2, float32)
    """

    @property
    def shape(self) -> torch.Size:
        return torch.Size(core.shape[0] for core in self.cores)

    @property
    def ranks(self) -> tuple[int, ...]:
        return (self.cores[0].shape[1],)

    def unfolded(self, rows: int = 1) -> Product:
        check_rows(self, rows)
        return Product(reduce(_rowwise_outer, self.cores[:rows]), reduce(_rowwise_outer, self.cores[rows:]).mT)

    def gradients(self) -> tuple[Tensor, ...]:
        others = all_but_one([core.mT @ core for core in self.cores])
        return tuple(core @ other for core, other in zip(self.cores, others, strict=True))

    def junctions(self) -> tuple[Product, ...]:
        """The columns of neighbouring modes, term by term: only their scale is free."""
        return tuple(Product(one.mT[..., None], two.mT[:, None, :]) for one, two in pairwise(self.cores))

    @torch.no_grad()
    def balanced(self) -> CP:
        """The same terms, each with columns of equal norms; a term of which one column is zero is left alone."""
        norms = torch.stack([torch.linalg.vector_norm(core.double(), dim=0) for core in self.cores])
        mean = norms.log().mean(0).exp()
        scales = torch.where(mean > 0, mean / torch.where(mean > 0, norms, 1.0), 1.0)
        return CP(tuple((core.double() * scale).to(core.dtype) for core, scale in zip(self.cores, scales, strict=True)))

    def _check(self) -> None:
        widths = {core.shape[-1] for core in self.cores}
        if len(self.cores) < 2 or any(core.ndim != 2 for core in self.cores) or len(widths) > 1:
            shapes = ", ".join(str(tuple(core.shape)) for core in self.cores)
            raise UserError(f"CP needs a matrix [size, rank] for each of two or more modes, of one rank, got {shapes}")


def _rowwise_outer(one: Float[Tensor, "m r"], two: Float[Tensor, "n r"]) -> Float[Tensor, "m*n r"]:
    """Every row of one times every row of the other, elementwise, as rows (the Khatri-Rao product of the columns)."""
    return (one[:, None, :] * two[None, :, :]).flatten(0, 1)
