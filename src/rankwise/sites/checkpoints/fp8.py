"""8-bit floating-point weights times their scales: one per tensor, per row, or per block as DeepSeek-V3 keeps them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rankwise.sites.checkpoints.dtypes import name_of
from rankwise.sites.checkpoints.region import Index, bounds, dropped_axes, without_axes
from rankwise.sites.checkpoints.stored import StoredTensor

USUAL_BLOCK = (128, 128)


def scaled_fp8(weight: StoredTensor, scale: StoredTensor, block: tuple[int, int] | None) -> StoredTensor | str:
    """`weight[..., i, j] * scale[..., i // rows, j // columns]` in float32, computed for the part that is read.

    The scale's shape says which layout it is; `block` is the size that the configuration states, 128 x 128 where it
    states none. `weight_scale_inv` multiplies too: it is the inverse of the factor that the quantizer multiplied with.

    **Returns:** the dequantized tensor, or the reason why the scale does not fit.
    """
    found = _layout(weight.shape, scale.shape, block or USUAL_BLOCK)
    if found is None:
        return (
            f"{name_of(weight.dtype)} of shape {list(weight.shape)} with a scale of shape {list(scale.shape)}, "
            f"which fits neither the tensor, its rows nor blocks of {' x '.join(map(str, block or USUAL_BLOCK))}"
        )
    (rows, columns), layout = found

    def read(index: Index | None) -> Tensor:
        ranges = bounds(index, weight.shape)
        content = weight.read(tuple(slice(*range_) for range_ in ranges)).to(torch.float32)
        scales = scale.read(None).to(torch.float32)
        if scales.numel() == 1:
            return without_axes(content * scales.reshape(()), dropped_axes(index))
        scales = scales.reshape(*scales.shape, *[1] * (len(weight.shape) - scales.ndim))
        batch = tuple(slice(*range_) for range_ in ranges[:-2]) if any(size > 1 for size in scales.shape[:-2]) else ()
        at_rows, at_columns = (torch.arange(*range_) for range_ in ranges[-2:])
        scales = scales[batch].index_select(-1, at_columns // columns)
        if scales.shape[-1] == 1:
            return without_axes(content * scales.index_select(-2, at_rows // rows), dropped_axes(index))
        # One row of blocks at a time: the scales are never spread out to the size of the weight.
        of_row = at_rows // rows
        first = int(of_row[0]) if len(of_row) else 0
        begin = 0
        for at, count in enumerate(torch.bincount(of_row - first).tolist()):
            content[..., begin : begin + count, :] *= scales[..., first + at, None, :]
            begin += count
        return without_axes(content, dropped_axes(index))

    description = f"{name_of(weight.dtype)} with {name_of(scale.dtype)} scales per {layout}"
    return replace(weight, dtype=torch.float32, bytes=weight.bytes + scale.bytes, read=read, dequantized=description)


def _layout(
    shape: tuple[int, ...], scale: tuple[int, ...], block: tuple[int, int]
) -> tuple[tuple[int, int], str] | None:
    """The block of a weight that one scale covers, as (rows, columns), with its name."""
    rows, columns = (shape[-2], shape[-1]) if len(shape) > 1 else (1, 1)
    whole = (max(rows, 1), max(columns, 1))
    if all(size == 1 for size in scale):
        return whole, "tensor"
    batch = shape[:-2]
    if len(shape) < 2:
        return None
    if scale == (*batch, -(-rows // block[0]), -(-columns // block[1])):
        return block, f"block of {block[0]} x {block[1]}"
    if scale in ((*batch, rows), (*batch, rows, 1)):
        return (1, whole[1]), "row"
    if batch and scale in (batch, (*batch, 1, 1)):
        return whole, "matrix"
    return None
