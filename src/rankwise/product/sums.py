"""Sums and changes of products are products again, by concatenation of their factors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.norms import frobenius
from rankwise.product.product import Product, Start
from rankwise.product.shapes import broadcast

if TYPE_CHECKING:
    from jaxtyping import Float

# A change has no rank when it is smaller than this many units of roundoff of the start: 1e-6 in float32.
NOISE_FLOOR = 8.0


def add(one: Product, two: Product) -> Product:
    """`one + two` as `[L, L'] @ diag(M, M') @ [R; R']`; the shallower product is padded with identities."""
    _check_pair(one, two, "+")
    depth = max(one.depth, two.depth)
    ones, twos = _padded(one, depth), _padded(two, depth)
    if depth == 1:
        return Product(ones[0] + twos[0])
    dtype = torch.promote_types(one.dtype, two.dtype)
    pairs = [(a.to(dtype), b.to(dtype)) for a, b in zip(ones, twos, strict=True)]
    left = _join(pairs[0], -1)
    right = _join(pairs[-1], -2)
    inner = [_blocks(a, None, b) for a, b in pairs[1:-1]]
    return Product(left, *inner, right, is_sum=True)


def change(end: Product, start: Product, *, start_norm: Float[Tensor, "*batch"] | None = None) -> Product:
    """`end - start`; for equal shapes in the cancellation-free form, differences first.

    With `D_i = A_i - B_i` for factors `A_i` of the end and `B_i` of the start,

        A_1 ... A_k - B_1 ... B_k = [D_1, B_1] @ [[A_2, 0], [D_2, B_2]] @ ... @ [A_k; D_k],

    whose small singular values are as exact as the differences, where `[A_1, -B_1] @ [A_2; B_2]` loses them.

    Arguments:
        end, start: two stacks of one shape.
        start_norm: the Frobenius norms of the start, where many changes are measured from it.
    """
    _check_pair(end, start, "-")
    shapes = [[factor.shape[-2:] for factor in product.factors] for product in (end, start)]
    if shapes[0] != shapes[1]:
        return add(end, -start)
    dtype = torch.promote_types(torch.promote_types(end.dtype, start.dtype), torch.float32)
    ends = [factor.to(dtype) for factor in end.factors]
    starts = [factor.to(dtype) for factor in start.factors]
    differences = [a - b for a, b in zip(ends, starts, strict=True)]
    norm = frobenius(start).value if start_norm is None else start_norm
    origin = Start(norm, NOISE_FLOOR * torch.finfo(dtype).eps)
    if end.depth == 1:
        return Product(differences[0], start=origin)
    left = _join((differences[0], starts[0]), -1)
    right = _join((ends[-1], differences[-1]), -2)
    inner = [_blocks(a, d, b) for a, d, b in zip(ends[1:-1], differences[1:-1], starts[1:-1], strict=True)]
    return Product(left, *inner, right, start=origin, is_sum=True)


def _check_pair(one: Product, two: Product, sign: str) -> None:
    if one.shape[-2:] != two.shape[-2:]:
        raise UserError(
            f"cannot compute {one!r} {sign} {two!r}: the matrices have different shapes, give two of the same one"
        )
    if one.device != two.device:
        raise UserError(
            f"cannot compute {one!r} {sign} {two!r}: one lies on {one.device} and one on {two.device}, "
            "move one with .to(device)"
        )
    try:
        broadcast(one.batch_shape, two.batch_shape)
    except ValueError:
        raise UserError(
            f"cannot compute {one!r} {sign} {two!r}: their batch dimensions do not broadcast, "
            "index or expand one of them"
        ) from None


def _padded(product: Product, depth: int) -> list[Tensor]:
    """The factors with identities put in at the narrowest place of the chain, where they are smallest."""
    size = min(product.widths)
    place = product.widths.index(size)
    identity = torch.eye(size, dtype=product.dtype, device=product.device)
    factors = list(product.factors)
    return [*factors[:place], *[identity] * (depth - product.depth), *factors[place:]]


def _join(pair: tuple[Tensor, Tensor], dim: int) -> Tensor:
    """Concatenate along a matrix dimension; only the batch axes in which the two differ are expanded."""
    batch = broadcast(*(tensor.shape[:-2] for tensor in pair))
    return torch.cat([tensor.expand(*batch, *tensor.shape[-2:]) for tensor in pair], dim)


def _blocks(upper: Tensor, corner: Tensor | None, lower: Tensor) -> Tensor:
    """The block matrix `[[upper, 0], [corner, lower]]`."""
    batch = broadcast(upper.shape[:-2], lower.shape[:-2])
    rows = upper.shape[-2] + lower.shape[-2]
    result = upper.new_zeros((*batch, rows, upper.shape[-1] + lower.shape[-1]))
    result[..., : upper.shape[-2], : upper.shape[-1]] = upper
    result[..., upper.shape[-2] :, upper.shape[-1] :] = lower
    if corner is not None:
        result[..., upper.shape[-2] :, : upper.shape[-1]] = corner
    return result
