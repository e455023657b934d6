"""Products that share a factor, as the one factorization that they are: keys and values shared by a group of heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.product import Product

if TYPE_CHECKING:
    from jaxtyping import Float


def concatenated(product: Product, group: int) -> Product:
    """One product for each group of matrices that share a factor: `[A_1; ...; A_G] @ B`, or `A @ [B_1, ..., B_G]`.

    Decay acts on the shared factor once, so that its laws hold for the concatenation and not for the single heads. The
    factor that varies along the group's axis is stacked, on its outer side; the shared one stays as it is.

    Arguments:
        product: two factors, one of which is shared along the axis (of size one there, absent, or expanded).
        group: the batch axis of the group's members, counted as in `product.batch_shape`.

    Returns:
        a product without that axis, `G` times as many rows (or columns).

    >>> import torch
    >>> concatenated(Product(torch.randn(8, 4, 64, 16), torch.randn(8, 1, 16, 64)), group=1)
    Product(8 of 256x16x64, float32)
    """
    if product.depth != 2:
        raise UserError(
            f"a group is concatenated on a product of two factors, got {product.depth} factors: {product!r}"
        )
    axis = _axis(product, group)
    left, right = (_with_batch(factor, len(product.batch_shape)) for factor in product.factors)
    left_shared, right_shared = (_is_shared(factor, axis) for factor in (left, right))
    if not (left_shared or right_shared):
        raise UserError(
            f"neither factor of {product!r} is shared along batch axis {group}: shapes {tuple(left.shape)} and "
            f"{tuple(right.shape)}; give the axis in which one of them has size 1"
        )
    members = product.batch_shape[axis]
    if right_shared:
        stacked = left.expand(*left.shape[:axis], members, *left.shape[axis + 1 :]).movedim(axis, -3).flatten(-3, -2)
        return Product(stacked, right.select(axis, 0), start=product.start, is_sum=product.is_sum)
    turned = right.movedim(axis, -2).flatten(-2, -1)
    return Product(left.select(axis, 0), turned, start=product.start, is_sum=product.is_sum)


def shared_axis(product: Product) -> int | None:
    """The batch axis along which heads share a factor, for the balance of groups; None where none or several do.

    >>> import torch
    >>> shared_axis(Product(torch.randn(8, 4, 64, 16), torch.randn(8, 1, 16, 64)))
    1
    """
    if product.depth != 2:
        return None
    dimensions = len(product.batch_shape)
    shared = [
        axis
        for axis in range(dimensions)
        if product.batch_shape[axis] > 1
        and any(
            factor.ndim - 2 < dimensions - axis or factor.shape[axis - dimensions - 2] == 1
            for factor in product.factors
        )
    ]
    return shared[0] if len(shared) == 1 else None


def separated(product: Product, group: int, members: int, *, shared: str) -> Product:
    """The inverse of `concatenated`: the members of each group again, along their own batch axis.

    Arguments:
        product: a concatenation.
        group: where the members' axis goes, counted in the batch shape of the result.
        members: how many there are in a group.
        shared: which factor the members share, "left" or "right".

    >>> import torch
    >>> heads = Product(torch.randn(8, 4, 64, 16), torch.randn(8, 1, 16, 64))
    >>> separated(concatenated(heads, 1), 1, 4, shared="right")
    Product(8x4 of 64x16x64, float32)
    """
    if shared not in ("left", "right"):
        raise UserError(f"shared must be 'left' or 'right', the factor that the members have in common, got {shared!r}")
    dimensions = len(product.batch_shape)
    left, right = (_with_batch(factor, dimensions) for factor in product.factors)
    axis = group if group >= 0 else group + dimensions + 1
    if shared == "right":
        return Product(left.unflatten(-2, (members, -1)).movedim(-3, axis), right.unsqueeze(axis))
    return Product(left.unsqueeze(axis), right.unflatten(-1, (members, -1)).movedim(-2, axis))


def balanced_group(product: Product, group: int) -> Product:
    """The same matrices with factors balanced as a group, the shared factor still shared.

    The gauge of a group is one invertible matrix for all its members. Balancing the concatenation spends it so that the
    half-sum of squared norms falls to the nuclear norm of the concatenation.

    >>> import torch
    >>> balanced_group(Product(torch.randn(8, 4, 64, 16), torch.randn(8, 1, 16, 64)), group=1)
    Product(8x4 of 64x16x64, float32)
    """
    joined = concatenated(product, group).balanced()
    axis = _axis(product, group)
    right = _with_batch(product.right, len(product.batch_shape))
    shared = "right" if _is_shared(right, axis) else "left"
    return separated(joined, axis, product.batch_shape[axis], shared=shared)


def _axis(product: Product, group: int) -> int:
    dimensions = len(product.batch_shape)
    if not -dimensions <= group < dimensions:
        raise UserError(f"{product!r} has {dimensions} batch axes: there is no axis {group} for a group")
    return group % dimensions


def _with_batch(factor: Float[Tensor, "*some rows columns"], dimensions: int) -> Tensor:
    """The factor with leading batch axes of size one up to a number of batch dimensions."""
    return factor[(None,) * (dimensions + 2 - factor.ndim)]


def _is_shared(factor: Tensor, axis: int) -> bool:
    return factor.shape[axis] == 1 or factor.stride(axis) == 0
