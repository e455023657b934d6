"""What a weight file offers: tensors that know where they lie, and are read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints.dtypes import TORCH_DTYPES, name_of
from rankwise.sites.checkpoints.header import read_header
from rankwise.sites.checkpoints.ranges import ByteRanges
from rankwise.sites.checkpoints.region import Index, Placed, read_region


@dataclass(frozen=True)
class Entry:
    """One readable tensor of a checkpoint: its shape and dtype as it is read, and its place on disk.

    `bytes` counts what the file stores, scales included; `dequantized` says from which format, None where the values
    are read as they are stored.
    """

    name: str
    _: KW_ONLY
    shape: tuple[int, ...]
    dtype: str
    file: str
    bytes: int
    dequantized: str | None = None


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that has not been read: what it is, and how to read it or a part of it."""

    shape: tuple[int, ...]
    _: KW_ONLY
    dtype: torch.dtype
    file: str
    bytes: int
    read: Callable[[Index | None], Tensor]
    dequantized: str | None = None

    def entry(self, name: str) -> Entry:
        """The public record of this tensor."""
        return Entry(
            name,
            shape=self.shape,
            dtype=name_of(self.dtype),
            file=self.file,
            bytes=self.bytes,
            dequantized=self.dequantized,
        )


@dataclass(frozen=True)
class WeightFile:
    """The tensors of one file, what of it is unreadable and why, the configuration it carries inside, and its state."""

    name: str
    _: KW_ONLY
    tensors: Mapping[str, StoredTensor]
    close: Callable[[], None]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    config: dict[str, Any] | None = None
    stamp: str = ""


def safetensors_file(source: ByteRanges, name: str) -> WeightFile:
    """The tensors of a safetensors file, by its checked header."""
    header = read_header(source)
    tensors = {
        record.name: located(
            Placed(source, offset=record.offset, shape=record.shape, dtype=TORCH_DTYPES[record.dtype]), name
        )
        for record in header.tensors
    }
    return WeightFile(name, tensors=tensors, close=source.close, unreadable=header.unreadable)


def located(placed: Placed, file: str) -> StoredTensor:
    """A tensor that lies row-major in a file, behind the common door."""

    def read(index: Index | None) -> Tensor:
        tensor = read_region(placed, index)
        # A byte that is neither 0 nor 1 is no bool, and torch would compute nonsense with it.
        if placed.dtype == torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
            raise CheckpointError(f"{placed.source.name} holds a bool other than 0 and 1: it is corrupt")
        return tensor

    size = prod(placed.shape) * placed.dtype.itemsize
    return StoredTensor(placed.shape, dtype=placed.dtype, file=file, bytes=size, read=read)
