"""Part of a tensor, read from its file: only the bytes that are asked for, or little more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from math import prod

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.sites.checkpoints.memory import allocated
from rankwise.sites.checkpoints.ranges import ByteRanges, read_bytes

# Up to this many bytes are read in one go and cut in memory, where separate reads of short runs would cost more.
LARGEST_SPAN = 8 * 2**20

Index = tuple[slice | int, ...]


def bounds(index: Index | None, shape: Sequence[int]) -> list[tuple[int, int, int]]:
    """(start, stop, step) for every axis of `shape`, as Python's own slicing would have it.

    >>> bounds((slice(1, -1), 0), (4, 5, 6))
    [(1, 3, 1), (0, 1, 1), (0, 6, 1)]
    """
    index = () if index is None else index
    if not isinstance(index, tuple) or not all(isinstance(part, (int, slice)) for part in index):
        raise UserError(f"an index into a checkpoint is a tuple of slices and integers, not {index!r}")
    if len(index) > len(shape):
        raise UserError(f"the index {index!r} has more axes than the shape {list(shape)}")
    ranges = []
    for axis, size in enumerate(shape):
        part = index[axis] if axis < len(index) else slice(None)
        if isinstance(part, int):
            if not -size <= part < size:
                raise UserError(f"the index {part} is outside of axis {axis} of the shape {list(shape)}")
            ranges.append((part % size, part % size + 1, 1))
        else:
            start, stop, step = part.indices(size)
            if step < 1:
                raise UserError(f"the step of {part!r} must be positive")
            ranges.append((start, max(start, stop), step))
    return ranges


def dropped_axes(index: Index | None) -> list[int]:
    """The axes that an integer index removes."""
    return [axis for axis, part in enumerate(index or ()) if isinstance(part, int)]


def without_axes(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    """The tensor without these axes of size one."""
    for axis in sorted(axes, reverse=True):
        tensor = tensor.squeeze(axis)
    return tensor


@dataclass(frozen=True)
class Placed:
    """A row-major tensor in a source of bytes."""

    source: ByteRanges
    _: KW_ONLY
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def read_region(placed: Placed, index: Index | None = None) -> Tensor:
    """`tensor[index]` of a tensor in a file, in memory of its own.

    A block that is contiguous in the file is read straight into its place. Another one is read by spans of at most
    `LARGEST_SPAN` bytes, so beside the result never more than that is held.
    """
    ranges = bounds(index, placed.shape)
    steps = tuple(slice(None, None, step) for _, _, step in ranges)
    extents = [stop - start for start, stop, _ in ranges]
    if not prod(extents):
        content = torch.empty(extents, dtype=placed.dtype)
    else:
        memory = allocated(prod(extents) * placed.dtype.itemsize)
        _fill(memoryview(memory), placed, [start for start, _, _ in ranges], extents)
        content = torch.frombuffer(memory, dtype=placed.dtype).view(extents)
    if any(step > 1 for _, _, step in ranges):
        content = content[steps].contiguous()
    return without_axes(content, dropped_axes(index))


def _fill(memory: memoryview, placed: Placed, starts: list[int], extents: list[int]) -> None:
    """Read the block that begins at `starts` and has these extents into memory, row-major."""
    strides = [prod(placed.shape[axis + 1 :]) for axis in range(len(placed.shape))]
    width = placed.dtype.itemsize
    first = sum(start * stride for start, stride in zip(starts, strides, strict=True))
    span = 1 + sum((size - 1) * stride for size, stride in zip(extents, strides, strict=True))
    position = placed.offset + first * width
    if span == prod(extents):
        placed.source.read_into(position, memory)
    elif span * width <= LARGEST_SPAN:
        around = torch.frombuffer(read_bytes(placed.source, position, span * width), dtype=placed.dtype)
        torch.frombuffer(memory, dtype=placed.dtype).view(extents).copy_(around.as_strided(extents, strides))
    else:
        # Halves of the first long axis: both lie in one piece in memory.
        axis = next(axis for axis, size in enumerate(extents) if size > 1)
        half = extents[axis] // 2
        cut = len(memory) // extents[axis] * half
        for piece, begin, size in ((memory[:cut], 0, half), (memory[cut:], half, extents[axis] - half)):
            moved = [start + begin * (at == axis) for at, start in enumerate(starts)]
            resized = [size if at == axis else extent for at, extent in enumerate(extents)]
            _fill(piece, placed, moved, resized)
