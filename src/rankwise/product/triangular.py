"""Reduce a product to two small factors with the same singular values, by QR from both ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rankwise.product.bounds import (
    DECOMPOSITION,
    MARGIN,
    UNIT,
    accumulation,
    column_lengths,
    frobenius_norm,
    leaning,
    worst_case,
)
from rankwise.product.chain import contraction_error, half_chains, identity
from rankwise.product.estimate import Estimate
from rankwise.product.guarded import guarded
from rankwise.product.parallel import on_all_cores
from rankwise.product.product import Product
from rankwise.product.scaling import equilibration

if TYPE_CHECKING:
    from jaxtyping import Float


class Reduced(NamedTuple):
    """A product as `left_end @ left @ right.mT @ right_end.mT`, the ends orthonormal and the middle small."""

    left_end: Float[Tensor, "*batch m k"]
    left: Float[Tensor, "*batch k w"]
    right: Float[Tensor, "*batch k w"]
    right_end: Float[Tensor, "*batch n k"]


@dataclass(frozen=True)
class Triangle:
    """The triangular factor of one half of a product, with the pieces of its error bound.

    The error in the Frobenius norm is `relative * |T|_F + carried * |lengths|`, and follows the columns when they are
    rescaled: `lengths` are those of the columns of the last factor of the half.
    """

    matrix: Float[Tensor, "*batch k w"]
    relative: float = 0.0
    carried: Float[Tensor, "*batch"] | float = 0.0
    lengths: Float[Tensor, "*batch w"] | None = None

    def rescaled(self, scale: Float[Tensor, "*batch w"]) -> Triangle:
        lengths = None if self.lengths is None else self.lengths * scale
        return Triangle(self.matrix * scale[..., None, :], self.relative, self.carried, lengths)

    @property
    def error(self) -> Float[Tensor, "*batch"]:
        own = self.relative * frobenius_norm(self.matrix)
        return own if self.lengths is None else own + self.carried * frobenius_norm(self.lengths[..., None, :])


@torch.no_grad()
def reduce(product: Product) -> tuple[Float[Tensor, "*batch k w"], Float[Tensor, "*batch k w"]]:
    """Two float64 factors whose product has the singular values of the given one: `T_left @ T_right.mT`.

    From each end towards the narrowest width `w`, with `T_0 = I`, `T_i` is the triangular factor of `qr(T_{i-1} A_i)`.

    Arguments:
        product: any stack, chain or single matrix.

    Returns:
        `T_left` and `T_right`, both `[*batch, k, w]` with `k` equal to `w`. Their batch axes broadcast against one
        another: what a group shares is reduced once.

    >>> left, right = reduce(Product(torch.eye(5, 2), torch.tensor([[3.0, 0, 0], [0, 4, 0]])))
    >>> torch.linalg.svdvals(left @ right.mT)
    tensor([4., 3.], dtype=torch.float64)
    """
    left, right = triangles(product)
    return left.matrix, right.matrix


@torch.no_grad()
def reduce_with_ends(product: Product) -> Reduced:
    """The same reduction with the orthonormal ends, so that singular vectors can be carried back to the full size."""
    ends: list[list[Tensor]] = [[], []]
    left, right = triangles(product, ends)
    left_end, right_end = (_joined(turns, product) for turns in ends)
    return Reduced(left_end, left.matrix, right.matrix, right_end)


@torch.no_grad()
def qr_values(product: Product) -> Estimate:
    """The singular values of `T_left @ T_right.mT`, with the error of the reduction, the product and its SVD."""
    left, right = equilibrated(*triangles(product))
    core = left.matrix @ right.matrix.mT
    (values,) = guarded(_singular_values, core.expand(*product.batch_shape, *core.shape[-2:])).outputs
    width = core.shape[-1]
    left_size, right_size = frobenius_norm(left.matrix), frobenius_norm(right.matrix)
    reduction = left.error * right_size + right.error * left_size + left.error * right.error
    rounding = worst_case(width) * left_size * right_size
    error = (reduction + UNIT * rounding)[..., None] + (accumulation(width**2) + DECOMPOSITION) * UNIT * values[..., :1]
    return Estimate(values, (MARGIN * error + contraction_error(product)).expand(values.shape))


def triangles(product: Product, ends: list[list[Tensor]] | None = None) -> tuple[Triangle, Triangle]:
    """Both halves reduced, each for itself; the orthonormal factors are put into `ends` if given."""
    turns = ends or [None, None]
    left, right = (_walk(half, product, kept) for half, kept in zip(half_chains(product), turns, strict=True))
    return left, right


def equilibrated(left: Triangle, right: Triangle) -> tuple[Triangle, Triangle]:
    """Both triangles with columns of equal length where they meet, which makes the product of their norms small."""
    scale, inverse = equilibration(*(column_lengths(half.matrix) for half in (left, right)))
    return left.rescaled(scale), right.rescaled(inverse)


def _walk(half: list[Tensor], product: Product, kept: list[Tensor] | None) -> Triangle:
    if not half:
        return Triangle(identity(product.max_rank, product.left))
    first = half[0].double()
    triangle = Triangle(_factorized(first, kept), _reflecting(*first.shape[-2:]) * UNIT)
    for factor in half[1:]:
        factor = factor.double()
        lengths = column_lengths(triangle.matrix), column_lengths(factor.mT)
        scale, inverse = equilibration(*lengths)
        triangle, factor = triangle.rescaled(scale), factor * inverse[..., None]
        product_rounding = worst_case(factor.shape[-2]) * UNIT * frobenius_norm(triangle.matrix)
        triangle = Triangle(
            matrix=_factorized(triangle.matrix @ factor, kept),
            relative=_reflecting(triangle.matrix.shape[-2], factor.shape[-1]) * UNIT,
            carried=triangle.error + product_rounding,
            lengths=column_lengths(factor),
        )
    return triangle


def _reflecting(rows: int, columns: int) -> float:
    """Units of roundoff of a QR, on the Frobenius norm."""
    return accumulation(rows * columns) + leaning(rows)


def _factorized(matrix: Tensor, kept: list[Tensor] | None) -> Tensor:
    if kept is None:
        return on_all_cores(_triangular_factor, matrix)
    turn, triangle = torch.linalg.qr(matrix)
    kept.append(turn)
    return triangle


def _triangular_factor(matrix: Tensor) -> Tensor:
    return torch.linalg.qr(matrix, mode="r").R


def _singular_values(matrices: Tensor) -> tuple[Tensor]:
    return (on_all_cores(torch.linalg.svdvals, matrices),)


def _joined(turns: list[Tensor], product: Product) -> Tensor:
    if not turns:
        return identity(product.max_rank, product.left)
    end = turns[0]
    for turn in turns[1:]:
        end = end @ turn
    return end
