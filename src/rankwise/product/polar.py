"""Polar factors of products without a singular value decomposition: Newton-Schulz on a small core.

With `W = P Q` at its narrowest width and triangles `P^T P = A^T A`, `Q Q^T = B^T B` of the two Grams, the core
`C = A B^T` has the singular values of `W`, and its polar factor `Z` gives that of `W` as `P A^{-1} Z B^{-T} Q`. All of
it consists of matrix products, Cholesky factors and triangular solves of the inner width, which run batched everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.product.scaling import equilibration

if TYPE_CHECKING:
    from jaxtyping import Float

# Singular values below this share of the largest are left out, smoothly: Grams do not hold their directions.
FLOOR = 1e-6
# Singular values below this share shrink in proportion, not by a constant: their directions hold too much rounding.
SHARP = 1e-4
# A Gram misses positive semi-definiteness by at most this share of its largest entry, for each of its columns.
SHIFT = 1e-14
# Where the iteration ends: the next step would change nothing.
CONVERGED = 1e-15


@cache
def scalings(floor: float) -> tuple[float, ...]:
    """The scale of each Newton-Schulz step that takes singular values from `[floor, 1]` to 1.

    `x -> a x (3 - a^2 x^2) / 2` with `a^2 = 3 / (1 + l + l^2)` maps `[l, 1]` onto an interval that ends in 1 and has
    the largest lower end that a scale can give it: small values grow by up to 2.6 each time, and never past 1.

    >>> len(scalings(1e-6)), scalings(1.0)
    (19, ())
    """
    found, least = [], floor
    while least < 1 - CONVERGED and len(found) < 100:
        scale = (3 / (1 + least + least**2)) ** 0.5
        found.append(scale)
        least = scale * least * (3 - scale**2 * least**2) / 2
    return tuple(found)


def polar_factor(
    matrices: Float[Tensor, "*batch m r"], bound: Float[Tensor, "*batch"] | None = None, floor: float = FLOOR
) -> Float[Tensor, "*batch m r"]:
    """`U V^T` of matrices `U S V^T` with no fewer rows than columns, by Newton-Schulz steps of a fixed number.

    Singular values below `floor` times the bound do not reach 1, but a share of it in proportion to them: what is zero
    stays zero. A matrix that is not finite gives NaN.

    Arguments:
        matrices: the matrices.
        bound: no less than the largest singular value; found from the entries by default.
        floor: the share of the bound down to which singular values become 1.

    >>> polar_factor(torch.tensor([[0.0, -4.0], [0.5, 0.0]]).double()).round(decimals=12).tolist()
    [[0.0, -1.0], [1.0, 0.0]]
    """
    if bound is None:
        sizes = matrices.abs()
        bound = (sizes.sum(-1).amax(-1) * sizes.sum(-2).amax(-1)).sqrt()
    result = matrices / torch.where(bound == 0, 1.0, bound)[..., None, None]
    for scale in scalings(floor):
        square = result.mT @ result
        result = (1.5 * scale) * result - (0.5 * scale**3) * (result @ square)
    return result


def nuclear_at_junction(
    left: Float[Tensor, "*batch r r"], right: Float[Tensor, "*batch r r"]
) -> tuple[Float[Tensor, "*batch r r"], Float[Tensor, "*batch r r"]]:
    """What the factors are multiplied by in the gradient of the nuclear norm, from their Grams `G` and `H`.

    The last factor's is `G X` and the first's `X H`, with `X = (H G)^{-1/2}`: the geometric means of each Gram with the
    inverse of the other. They are identities where the factors are balanced, since the nuclear norm is then what decay
    on the factors charges. Directions of singular values below `FLOOR` of `|P| |Q|` are left out. In float64.

    >>> same = torch.diag(torch.tensor([2.0, 0.5]).double())
    >>> last, first = nuclear_at_junction(same, same)
    >>> torch.allclose(last, torch.eye(2).double()), torch.allclose(first, torch.eye(2).double())
    (True, True)
    """
    core = _Core.of(left, right)
    of_first = torch.linalg.solve_triangular(core.one, core.polar @ core.two, upper=True)
    of_last = torch.linalg.solve_triangular(core.two, core.polar.mT @ core.one, upper=True)
    # A gradient goes the other way than its factor does under a change of gauge.
    return _on_both_sides(_symmetric(of_last), 1 / core.scale), _on_both_sides(_symmetric(of_first), core.scale)


def shrinking(
    left: Float[Tensor, "*batch r r"], right: Float[Tensor, "*batch r r"], least: float | Tensor
) -> Float[Tensor, "*batch r r"]:
    """`X` with which every singular value `s` of `P (1 - a X) Q` has fallen by `a s^2 / (s^2 + e^2)`: by `a`, if large.

    It is `(H G)^{-1/2} (1 + e^2 (H G)^{-1})^{-1}` for the Grams `G = P^T P` and `H = Q Q^T`. Directions in which one of
    the factors is zero are left alone, so that the other one stays there.

    Arguments:
        left, right: the Grams.
        least: `e`, about where singular values cease to fall by a constant; no less than `SHARP` of `|P| |Q|` is taken.

    >>> one = torch.eye(1).double()
    >>> [round(shrinking(size * one, one, 1.0).item(), 6) for size in (0.0, 1.0, 9.0)]
    [0.0, 0.5, 0.3]
    """
    core = _Core.of(left, right)
    least = torch.as_tensor(least, dtype=torch.float64, device=core.bound.device)
    least = torch.maximum(least, SHARP * core.bound)
    least = torch.where(least == 0, 1.0, least)[..., None, None]
    matrix = core.one @ core.two.mT
    size = core.polar.mT @ matrix
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    inverse = torch.linalg.solve_ex(matrix.mT @ matrix + least.square() * identity, _symmetric(size)).result
    inside = torch.linalg.solve_triangular(core.two, _symmetric(inverse) @ core.two, upper=True).mT
    return core.scale[..., :, None] * inside / core.scale[..., None, :]


@dataclass(frozen=True)
class _Core:
    """Triangles of both Grams after an exact diagonal gauge, and the polar factor of the core between them."""

    one: Tensor
    two: Tensor
    polar: Tensor
    bound: Tensor
    scale: Tensor

    @staticmethod
    def of(left: Tensor, right: Tensor) -> _Core:
        left, right, scale = _even(left, right)
        norms = (torch.linalg.matrix_norm(gram, ord=torch.inf) for gram in (left, right))
        bound = next(norms).sqrt() * next(norms).sqrt()
        one, two = _triangle(left), _triangle(right)
        return _Core(one, two, polar_factor(one @ two.mT, bound), bound, scale)


def _even(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both Grams in float64 after an exact diagonal gauge that makes the columns they belong to equally long."""
    left, right = torch.broadcast_tensors(left.double(), right.double())
    lengths = (gram.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt() for gram in (left, right))
    scale, inverse = equilibration(*lengths)
    # A column that meets a column of zeros has no scale of its own: it stays as it is.
    scale, inverse = (torch.where(each == 0, 1.0, each) for each in (scale, inverse))
    return _on_both_sides(left, scale), _on_both_sides(right, inverse), scale


def _triangle(gram: Tensor) -> Tensor:
    """An upper triangular `R` with `R^T R` the Gram, up to a shift of the size of its rounding."""
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    largest = gram.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None]
    # A zero Gram has the shift of the smallest numbers; the products with it stay zero to the arithmetic.
    shift = (SHIFT * gram.shape[-1] * largest).clamp_min(torch.finfo(gram.dtype).tiny ** 0.5)
    triangle, info = torch.linalg.cholesky_ex(gram + shift * identity, upper=True)
    return torch.where((info == 0)[..., None, None], triangle, torch.nan)


def _on_both_sides(matrices: Tensor, scale: Tensor) -> Tensor:
    return matrices * scale[..., :, None] * scale[..., None, :]


def _symmetric(matrices: Tensor) -> Tensor:
    return (matrices + matrices.mT) / 2
