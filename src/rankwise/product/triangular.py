"""Reduce a product to two small factors with the same singular values, by QR from both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rankwise.product.chain import halves, identity
from rankwise.product.product import Product

if TYPE_CHECKING:
    from jaxtyping import Float


class Reduced(NamedTuple):
    """A product as `left_end @ left @ right.mT @ right_end.mT`, the ends orthonormal and the middle small."""

    left_end: Float[Tensor, "*batch m k"]
    left: Float[Tensor, "*batch k w"]
    right: Float[Tensor, "*batch k w"]
    right_end: Float[Tensor, "*batch n k"]


@torch.no_grad()
def reduce(product: Product) -> tuple[Float[Tensor, "*batch k w"], Float[Tensor, "*batch k w"]]:
    """Two float64 factors whose product has the singular values of the given one: `T_left @ T_right.mT`.

    From each end towards the narrowest width `w`, with `T_0 = I`, `T_i` is the triangular factor of `qr(T_{i-1} A_i)`.

    Arguments:
        product: any stack, chain or single matrix.

    Returns:
        `T_left` and `T_right`, both `[*batch, k, w]` with `k` equal to `w`. Their batch axes broadcast against one
        another: a factor that a group shares is reduced once.

    >>> left, right = reduce(Product(torch.eye(5, 2), torch.tensor([[3.0, 0, 0], [0, 4, 0]])))
    >>> torch.linalg.svdvals(left @ right.mT)
    tensor([4., 3.], dtype=torch.float64)
    """
    width = product.max_rank
    left, right = halves(product)
    return _triangle(left, width, product.left), _triangle(right, width, product.left)


@torch.no_grad()
def reduce_with_ends(product: Product) -> Reduced:
    """The same reduction with the orthonormal ends, so that singular vectors can be carried back to the full size."""
    width = product.max_rank
    left, right = halves(product)
    left_end, left_triangle = _with_end(left, width, product.left)
    right_end, right_triangle = _with_end(right, width, product.left)
    return Reduced(left_end, left_triangle, right_triangle, right_end)


def _triangle(half: list[Tensor], width: int, like: Tensor) -> Tensor:
    if not half:
        return identity(width, like)
    triangle = torch.linalg.qr(half[0].double(), mode="r").R
    for factor in half[1:]:
        triangle = torch.linalg.qr(triangle @ factor.double(), mode="r").R
    return triangle


def _with_end(half: list[Tensor], width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    if not half:
        return identity(width, like), identity(width, like)
    end, triangle = torch.linalg.qr(half[0].double())
    for factor in half[1:]:
        turn, triangle = torch.linalg.qr(triangle @ factor.double())
        end = end @ turn
    return end, triangle
