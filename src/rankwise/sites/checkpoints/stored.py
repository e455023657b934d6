"""What a weight file offers: tensors that know where they lie, and are read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints.dtypes import TORCH_DTYPES, name_of
from rankwise.sites.checkpoints.header import read_header
from rankwise.sites.checkpoints.ranges import ByteRanges
from rankwise.sites.checkpoints.region import Index, read_region


@dataclass(frozen=True)
class Entry:
    """One readable tensor of a checkpoint: its shape and dtype as it is read, and its place on disk.

    `bytes` counts what the file stores, scales included; `dequantized` says from which format, None where the values
    are read as they are stored.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str
    bytes: int
    dequantized: str | None = None


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that has not been read: what it is, and how to read it or a part of it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    file: str
    bytes: int
    read: Callable[[Index | None], Tensor]
    dequantized: str | None = None

    def entry(self, name: str) -> Entry:
        """The public record of this tensor."""
        return Entry(name, self.shape, name_of(self.dtype), self.file, self.bytes, self.dequantized)


@dataclass(frozen=True)
class WeightFile:
    """The tensors of one file, what of it is unreadable and why, and the configuration it carries inside."""

    name: str
    tensors: Mapping[str, StoredTensor]
    close: Callable[[], None]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    config: dict[str, Any] | None = None


def safetensors_file(source: ByteRanges, name: str) -> WeightFile:
    """The tensors of a safetensors file, by its checked header."""
    header = read_header(source)
    tensors = {
        record.name: located(source, name, record.offset, record.shape, TORCH_DTYPES[record.dtype])
        for record in header.tensors
    }
    return WeightFile(name, tensors, source.close, header.unreadable)


def located(source: ByteRanges, file: str, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> StoredTensor:
    """A row-major tensor at an offset of a file."""

    def read(index: Index | None) -> Tensor:
        tensor = read_region(source, offset, shape, dtype, index)
        # A byte that is neither 0 nor 1 is no bool, and torch would compute nonsense with it.
        if dtype == torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
            raise CheckpointError(f"{source.name} holds a bool tensor with bytes other than 0 and 1: it is corrupt")
        return tensor

    size = dtype.itemsize
    for extent in shape:
        size *= extent
    return StoredTensor(shape, dtype, file, size, read)
