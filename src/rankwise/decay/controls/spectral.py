"""Scaling singular values where they stand, without turning anything inside the product."""

from __future__ import annotations

import warnings
from abc import abstractmethod

import torch
from torch import Tensor

from rankwise.decay.controls.base import ProductControl
from rankwise.decay.products import LiveProduct
from rankwise.errors import UserError
from rankwise.product.groups import concatenated
from rankwise.product.product import Product
from rankwise.product.vectors import svd


class SpectralControl(ProductControl):
    """A control that scales singular values and leaves everything else of a product, and of its factors, alone.

    With `W = U S V^T` and shares `p` in `[0, 1]`, the outer factors become `(1 - U (1 - q) U^T) A` and
    `B (1 - V (1 - q) V^T)` with `q = sqrt(p)`: the singular values of the product are `p S` then, in the same
    directions. Where `p = 1` nothing moves at all, and nothing is turned or permuted inside: rotary pairs stay pairs,
    what an optimizer keeps for each entry keeps its meaning, and balanced factors stay balanced. A group of heads that
    shares a factor is one product, its concatenation.
    """

    @abstractmethod
    def shares(self, values: Tensor, rate: float) -> Tensor:
        """What part of each singular value is kept, from 0 to 1; values are `[*batch, k]`, largest first."""

    @torch.no_grad()
    def apply(self, rate: float = 1.0) -> None:
        for live in self.products:
            self._apply_to(live, rate)

    def _apply_to(self, live: LiveProduct, rate: float) -> None:
        product = live.product()
        axes = _shared_axes(product)
        joined = product
        for axis in reversed(axes):
            joined = concatenated(joined, axis)
        triplets = svd(joined)
        if triplets.failures:
            warnings.warn(
                f"{type(self).__name__} left {live.name} alone: {next(iter(triplets.failures.values()))}", stacklevel=4
            )
            return
        # Directions without size are whatever rounding makes of them: they are not a part of the product.
        alive = triplets.values > triplets.value_error
        lost = torch.where(alive, 1 - self.shares(triplets.values, rate).clamp(0, 1).sqrt(), 0.0)
        if product.depth == 1:
            kept = (1 - lost).square() - 1
            _add(live.views()[0], (triplets.left * (kept * triplets.values)[..., None, :]) @ triplets.right.mT)
            return
        first, last = live.views()[0], live.views()[-1]
        _add(first, _outer(triplets.left, lost, first, axes))
        _add(last.mT, _outer(triplets.right, lost, last.mT, axes))


def _outer(vectors: Tensor, lost: Tensor, factor: Tensor, axes: list[int]) -> Tensor:
    """`-U lost U^T A` for a factor `A` of the group's concatenation or a shared one, by the height of `U`."""
    shape = factor.shape
    stacked = factor.double()
    for axis in reversed(axes):
        stacked = stacked.movedim(axis, -3).flatten(-3, -2) if shape[axis] > 1 else stacked.squeeze(axis)
    moved = -vectors @ (lost[..., None] * (vectors.mT @ stacked))
    for axis in axes:
        moved = moved.unflatten(-2, (shape[axis], -1)).movedim(-3, axis) if shape[axis] > 1 else moved.unsqueeze(axis)
    return moved


def _add(region: Tensor, change: Tensor) -> None:
    region.copy_((region.double() + change).to(region.dtype))


def _shared_axes(product: Product) -> list[int]:
    """The batch axes along which one of two factors is shared."""
    if product.depth != 2:
        shapes = [factor.shape[:-2] for factor in product.factors]
        if len(set(shapes)) > 1:
            raise UserError(
                f"{product!r} is a chain with shared factors: its singular values cannot be scaled in place"
            )
        return []
    one, two = (factor.shape[:-2] for factor in product.factors)
    return [axis for axis in range(len(one)) if min(one[axis], two[axis]) == 1 < max(one[axis], two[axis])]
