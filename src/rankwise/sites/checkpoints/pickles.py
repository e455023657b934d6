"""PyTorch's own files, opened with `weights_only` and read by ranges: no code runs, no tensor is loaded unasked."""

from __future__ import annotations

import io
import pickle
import re
import struct
import warnings
import zipfile
from math import prod
from typing import Any

import torch
from torch import Tensor

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints.nested import find_tensors
from rankwise.sites.checkpoints.ranges import ByteRanges
from rankwise.sites.checkpoints.region import Index, Placed, bounds, dropped_axes, read_region, without_axes
from rankwise.sites.checkpoints.stored import StoredTensor, WeightFile, located
from rankwise.text import printable

# The archive is walked in small steps; a buffer keeps each from being a request of its own.
BUFFER_BYTES = 2**16


class RangeStream(io.RawIOBase):
    """A source of ranges as a seekable stream."""

    def __init__(self, source: ByteRanges) -> None:
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._source.size - self._position))
        if count:
            self._source.read_into(self._position, view[:count])
        self._position += count
        return count


def pickle_file(source: ByteRanges, name: str) -> WeightFile:
    """The tensors of a `.bin`, `.pt`, `.pth`, `.ckpt` or `.th` file, found at its top level or nested.

    Its structure is unpickled under fake tensors, which yields where each storage lies; values are read later, by
    ranges. An archive that does not allow that (the format before torch 1.6, big-endian, compressed) is loaded whole.
    """
    stream = io.BufferedReader(RangeStream(source), BUFFER_BYTES)
    records = _archive_records(stream)
    found = find_tensors(_unpickled(stream, source, fake=records is not None), name)
    strided = [tensor for tensor in found.tensors.values() if tensor.layout == torch.strided]
    if records is not None and any(_start_of_storage(tensor) is None for tensor in strided):
        # A torch that does not tell where storages lie.
        records = None
        found = find_tensors(_unpickled(stream, source, fake=False), name)
    notes: list[str] = []
    if records is None:
        notes.append(f"{name} cannot be read by ranges (an old, compressed or big-endian archive): it was loaded whole")
    tensors: dict[str, StoredTensor] = {}
    unreadable: dict[str, str] = {}
    for key, tensor in found.tensors.items():
        stored = _stored(tensor, source, name, records)
        if isinstance(stored, str):
            unreadable[key] = stored
        else:
            tensors[key] = stored
    return WeightFile(
        name,
        tensors=tensors,
        close=source.close,
        unreadable=unreadable,
        notes=(*notes, *found.notes),
        config=found.config,
    )


def _stored(tensor: Tensor, source: ByteRanges, file: str, records: dict[int, int] | None) -> StoredTensor | str:
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "a quantized tensor" if tensor.is_quantized else f"a sparse tensor ({tensor.layout})"
        return f"{kind} of torch's own is not read"
    return _loaded(tensor, file) if records is None else _placed(tensor, source, file, records)


def _archive_records(stream: io.BufferedReader[RangeStream]) -> dict[int, int] | None:
    """Size of each storage in the archive by its position in the file; None where storages do not lie in it plainly."""
    stream.seek(0)
    try:
        if not zipfile.is_zipfile(stream):  # which itself raises on some broken archives
            return None
        with zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            order = next((member for member in members if member.filename.endswith("/byteorder")), None)
            if order is not None and archive.open(order).read(16).strip() != b"little":
                return None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, ValueError):
        return None
    storages = [member for member in members if re.search(r"/data/[^/]+$", member.filename)]
    if any(member.compress_type != zipfile.ZIP_STORED for member in storages):
        return None
    return {_position(stream, member): member.file_size for member in storages}


def _position(stream: io.BufferedReader[RangeStream], member: zipfile.ZipInfo) -> int:
    """Where a stored member's content begins: after its local header, a name and a padding of stated lengths."""
    stream.seek(member.header_offset + 26)
    name_length, padding_length = struct.unpack("<HH", stream.read(4).ljust(4, b"\0"))
    return member.header_offset + 30 + name_length + padding_length


def _unpickled(stream: io.BufferedReader[RangeStream], source: ByteRanges, *, fake: bool) -> Any:
    # Imported here, because it is slow to import and safetensors does not need it.
    from torch._subclasses.fake_tensor import FakeTensorMode

    stream.seek(0)
    try:
        with warnings.catch_warnings():
            # torch warns of its deprecated storages for files that are old and fine.
            warnings.simplefilter("ignore")
            if not fake:
                return torch.load(stream, map_location="cpu", weights_only=True)
            with FakeTensorMode():
                return torch.load(stream, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        raise CheckpointError(_refusal_of_code(source, str(error))) from error
    # A damaged pickle can make the unpickler raise nearly anything.
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = printable(lines[0] if lines else type(error).__name__, 160)
        raise CheckpointError(
            f"{source.name} is not a usable PyTorch file (truncated or damaged?): {reason}"
        ) from error


def _refusal_of_code(source: ByteRanges, message: str) -> str:
    asked = re.search(r"GLOBAL (\S+)", message)
    if asked is None:
        return f"{source.name} is not a PyTorch file of plain tensors, or it is damaged: weights_only refuses it"
    return (
        f"{source.name} is a pickle with code in it (it asks for {printable(asked[1])}): refused; "
        "if you trust its author, save its tensors as safetensors"
    )


def _placed(tensor: Tensor, source: ByteRanges, file: str, records: dict[int, int]) -> StoredTensor | str:
    """A fake tensor as a stored one, its place checked against the archive; or why it is not read."""
    shape, stride, dtype = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())), tensor.dtype
    first = int(tensor.storage_offset())
    span = 1 + sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True)) if tensor.numel() else 0
    start = _start_of_storage(tensor) or 0
    if span and (first + span) * dtype.itemsize > records.get(start, 0):
        raise CheckpointError(f"{source.name}: a tensor reaches beyond its storage; the file is truncated or damaged")
    offset = start + first * dtype.itemsize
    if tensor.is_contiguous():
        return located(Placed(source, offset=offset, shape=shape, dtype=dtype), file)
    if prod(shape) > span:
        return "an expanded tensor (its elements share memory) is not read"

    flat = Placed(source, offset=offset, shape=(span,), dtype=dtype)

    def read(index: Index | None) -> Tensor:
        ranges = tuple(slice(*range_) for range_ in bounds(index, shape))
        content = read_region(flat).as_strided(shape, stride)[ranges]
        return without_axes(content, dropped_axes(index)).clone(memory_format=torch.contiguous_format)

    return StoredTensor(shape, dtype=dtype, file=file, bytes=prod(shape) * dtype.itemsize, read=read)


def _start_of_storage(tensor: Tensor) -> int | None:
    """Where the storage of a tensor that was unpickled as fake begins in the file, if torch tells."""
    return getattr(tensor.untyped_storage(), "_checkpoint_offset", None)


def _loaded(tensor: Tensor, file: str) -> StoredTensor:
    """A tensor that is in memory already, behind the same door."""

    def read(index: Index | None) -> Tensor:
        ranges = tuple(slice(*range_) for range_ in bounds(index, tensor.shape))
        content = without_axes(tensor.detach()[ranges], dropped_axes(index))
        return content.clone(memory_format=torch.contiguous_format)

    size = tensor.numel() * tensor.dtype.itemsize
    return StoredTensor(tuple(tensor.shape), dtype=tensor.dtype, file=file, bytes=size, read=read)
