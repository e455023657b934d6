"""Adding a decay's gradients to what the factors lie in: from small Grams, in place, many products at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rankwise.decay.products import LiveProduct
from rankwise.product.gram import column_gram
from rankwise.product.product import Product

if TYPE_CHECKING:
    from rankwise.decay.base import Decay
    from rankwise.sites.site import Site

Scale = float | Tensor
"""A number, or a tensor of one entry that is on the device and never waited for."""


@dataclass(frozen=True)
class Task:
    """What gradients are wanted for.

    Arguments:
        scales: what each factor's gradient will be multiplied by; for methods that are no gradients but steps.
        site: where the product is (the first of several alike).
    """

    scales: Sequence[Scale] = (1.0,)
    site: Site | None = None


PLAIN = Task()
Target = Callable[[nn.Parameter], Tensor | None]


def grouped(products: Iterable[LiveProduct], key: Callable[[LiveProduct], Hashable]) -> list[list[LiveProduct]]:
    """Products that can be worked on together: of equal shapes, types and devices, and equal under `key`."""
    found: dict[Hashable, list[LiveProduct]] = {}
    for each in products:
        kinds = tuple((view.shape, view.dtype, view.device) for view in each.views())
        found.setdefault((kinds, key(each)), []).append(each)
    return list(found.values())


def is_wide(shapes: Sequence[Sequence[int]]) -> bool:
    """Whether the matrix itself is no larger than the Grams of its inner widths: then it is cheaper to form it."""
    inner = max((shape[-1] for shape in shapes[:-1]), default=0)
    return shapes[0][-2] * shapes[-1][-1] <= inner**2


def add_gradients(
    decay: Decay, products: Sequence[LiveProduct], scales: Sequence[Scale], target: Target
) -> Tensor | None:
    """Add `scale_i` times the gradient of factor `i` to the target of its parameter, for products of equal shapes.

    All Grams are taken before anything is written, so that a target may be the parameter itself. Products whose
    gradient is not finite are left out.

    Arguments:
        decay: whose gradient.
        products: as `grouped` puts them together.
        scales: one for each factor; a tensor is never waited for.
        target: what to add to, of the parameter's shape, or None to leave it out.

    Returns:
        how many products were left out, on their device.
    """
    left_out = None
    for piece in _pieces(products):
        count = _add(decay, piece, scales, target)
        left_out = count if left_out is None else left_out + count
    return left_out


def _pieces(products: Sequence[LiveProduct]) -> list[Sequence[LiveProduct]]:
    """Halves: the Grams of one and a block of what is multiplied by them take less memory than the Grams of all."""
    half = (len(products) + 1) // 2
    return [products[:half], products[half:]] if half < len(products) else [products]


def _add(decay: Decay, products: Sequence[LiveProduct], scales: Sequence[Scale], target: Target) -> Tensor:
    views = [live.views() for live in products]
    shapes = [view.shape for view in views[0]]
    if not decay.from_grams or len(shapes) == 1 or is_wide(shapes) or products[0].overlaps:
        return sum(
            (_add_whole(decay, live, scales, target) for live in products), torch.zeros((), device=views[0][0].device)
        )
    dtype = torch.promote_types(Product(*views[0]).dtype, decay.accumulate)
    first = _stacked([factors[0].mT for factors in views], dtype)
    last = _stacked([factors[-1] for factors in views], dtype)
    inner = [torch.stack([factors[place].to(dtype) for factors in views]) for place in range(1, len(shapes) - 1)]
    found = decay.multipliers(first, inner, last, Task(scales, products[0].site))
    good = _finite((found.first, *found.inner, found.last), len(products))
    alive = [True] * len(products)
    if good.device.type == "cpu":
        alive = good.tolist()
    else:
        # Nobody waits for the device to say which: what is not finite counts as zero.
        for part in (found.first, *found.inner, found.last):
            part.masked_fill_(~good.reshape(-1, *[1] * (part.ndim - 1)), 0.0)
    limit = (first.numel() + last.numel()) // 2
    for index, (live, factors) in enumerate(zip(products, views, strict=True)):
        if not alive[index]:
            continue
        writable = [_region(live, place, target) for place in range(len(shapes))]
        if (region := writable[0]) is not None:
            _multiply_into(region, factors[0], found.first[index], scales[0], limit)
        if (region := writable[-1]) is not None:
            _multiply_into(region.mT, factors[-1].mT, found.last[index].mT, scales[-1], limit)
        for place, gradients in enumerate(found.inner, start=1):
            if (region := writable[place]) is not None:
                _add_scaled(region, gradients[index].sum_to_size(region.shape), scales[place])
    return (~good).sum()


def _add_whole(decay: Decay, live: LiveProduct, scales: Sequence[Scale], target: Target) -> Tensor:
    """One product by its gradients as such: single matrices, wide products, factors that share entries."""
    gradients = decay.gradients_of(live, Task(scales, live.site))
    good = torch.stack([gradient.isfinite().all() for gradient in gradients]).all()
    if good.device.type != "cpu" or bool(good):
        for place, (gradient, scale) in enumerate(zip(gradients, scales, strict=True)):
            if (region := _region(live, place, target)) is None:
                continue
            _add_scaled(region, gradient if good.device.type == "cpu" else torch.where(good, gradient, 0.0), scale)
    return (~good).sum()


def _stacked(factors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """`B B^T` of every factor `B`, `[count, *batch, r, r]`."""
    shape = factors[0].shape
    grams = torch.empty(len(factors), *shape[:-1], shape[-2], dtype=dtype, device=factors[0].device)
    for gram, factor in zip(grams, factors, strict=True):
        if factor.dtype == dtype:
            torch.matmul(factor, factor.mT, out=gram)
        else:
            gram.copy_(column_gram(factor.mT, dtype))
    return grams


def _finite(parts: Sequence[Tensor], count: int) -> Tensor:
    """Which products have finite gradients throughout."""
    largest = [torch.linalg.vector_norm(part.reshape(count, -1), torch.inf, dim=-1) for part in parts]
    return torch.stack(largest).isfinite().all(0)


def _add_scaled(region: Tensor, gradient: Tensor, scale: Scale) -> None:
    if isinstance(scale, Tensor):
        region.add_(gradient * scale)
    else:
        region.add_(gradient, alpha=scale)


def _region(live: LiveProduct, place: int, target: Target) -> Tensor | None:
    tensor = target(live.parameters[place])
    return None if tensor is None else live.like(place, tensor)


def _multiply_into(region: Tensor, factor: Tensor, small: Tensor, scale: Scale, limit: int) -> None:
    """`region += scale * factor @ small`, by blocks of rows that hold no more than a limit; both may be one tensor."""
    rows = factor.shape[-2]
    # A factor that a batch shares gathers its gradients.
    own = [min(one, two) for one, two in zip(small.shape[:-2], factor.shape[:-2], strict=True)]
    small = small.sum_to_size((*own, *small.shape[-2:])).to(torch.promote_types(factor.dtype, torch.float32))
    if isinstance(scale, Tensor):
        small, scale = small * scale, 1.0
    block = max(small.shape[-1], limit * rows // factor.numel())
    for start in range(0, rows, block):
        piece = factor[..., start : start + block, :]
        region[..., start : start + block, :].add_(piece.to(small.dtype) @ small, alpha=scale)
