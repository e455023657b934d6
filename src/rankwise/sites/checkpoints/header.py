"""The header of a safetensors file, believed only after every number in it was checked against the file."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import KW_ONLY, dataclass, field
from math import prod
from typing import Any

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints.dtypes import TORCH_DTYPES, bits_of
from rankwise.sites.checkpoints.ranges import ByteRanges, read_bytes
from rankwise.text import printable

# The format's own limit: a header that claims more is an attack or a different kind of file.
LARGEST_HEADER = 100_000_000
LARGEST_DIMENSION = 2**63 - 1
# torch's own limit for operations on a tensor.
MOST_DIMENSIONS = 64


@dataclass(frozen=True)
class TensorRecord:
    """One tensor as the header states it: `bytes` bytes at `offset` of the file, row-major, little-endian."""

    name: str
    _: KW_ONLY
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


@dataclass(frozen=True)
class Header:
    """What a safetensors file holds, in the order of the data, and what of it nobody can read."""

    tensors: tuple[TensorRecord, ...]
    _: KW_ONLY
    metadata: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)


def read_header(source: ByteRanges) -> Header:
    """Read and check the header: 8 bytes of little-endian length, a JSON object, then the data without gaps.

    **Arguments:** any source of byte ranges. Never more than the header is read, and never more than the file's size
    is allocated.

    **Returns:** a `Header` whose offsets count from the start of the file. Tensors of an unknown dtype are listed in
    `unreadable`; everything else that is wrong raises `CheckpointError`.
    """
    length = int.from_bytes(read_bytes(source, 0, 8), "little") if source.size >= 8 else 0
    if length < 2:
        raise _refusal(source, "it has no safetensors header")
    if length > LARGEST_HEADER:
        raise _refusal(source, f"its header claims {length} bytes, more than the format's {LARGEST_HEADER}")
    if 8 + length > source.size:
        raise _refusal(source, f"its header claims {length} bytes but the file has only {source.size}: truncated?")
    content = _parsed(source, read_bytes(source, 8, length))
    metadata = content.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _refusal(source, "its __metadata__ is not a table of strings")
    start = 8 + length
    records = sorted((_record(source, name, value, start) for name, value in content.items()), key=_position)
    _check_layout(source, records, start)
    unreadable = {
        record.name: f"dtype {printable(record.dtype, 40)} is not one this version can read"
        for record in records
        if record.dtype not in TORCH_DTYPES
    }
    readable = tuple(record for record in records if record.name not in unreadable)
    return Header(readable, metadata=metadata, unreadable=unreadable)


def _parsed(source: ByteRanges, text: bytearray) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise _refusal(source, f"its header holds '{printable(twice)}' twice")
        return table

    if not text.startswith(b"{"):
        raise _refusal(source, "its header is not a JSON object")
    try:
        content = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
        for name in content:
            name.encode("utf-8")
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise _refusal(source, "its header is not valid JSON in UTF-8") from error
    return content


def _record(source: ByteRanges, name: str, value: Any, start: int) -> TensorRecord:
    def refusal(problem: str) -> CheckpointError:
        return _refusal(source, f"tensor '{printable(name)}' {problem}")

    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        raise refusal("lacks dtype, shape or data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str):
        raise refusal("has a dtype that is not text")
    if not _counts(shape) or len(shape) > MOST_DIMENSIONS or prod(_at_least_one(shape)) > LARGEST_DIMENSION:
        raise refusal("has a shape that is not a list of sizes torch can hold")
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise refusal("has data_offsets that are not two growing positions")
    size = offsets[1] - offsets[0]
    if start + offsets[1] > source.size:
        raise refusal(f"ends at byte {start + offsets[1]} but the file has {source.size}: truncated, fetch it again")
    bits = bits_of(dtype)
    if bits is not None and prod(shape) * bits != 8 * size:
        raise refusal(f"of shape {list(shape)} and dtype {dtype} does not fit its {size} bytes")
    return TensorRecord(name, dtype=dtype, shape=tuple(shape), offset=start + offsets[0], bytes=size)


def _at_least_one(shape: list[int]) -> list[int]:
    """Sizes with 0 read as 1: torch multiplies strides even where a tensor is empty, and they must not overflow."""
    return [max(size, 1) for size in shape]


def _counts(values: Any) -> bool:
    # bool is an int in Python, and `true` is not a size.
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= LARGEST_DIMENSION for value in values)


def _position(record: TensorRecord) -> tuple[int, int]:
    return record.offset, record.offset + record.bytes


def _check_layout(source: ByteRanges, records: list[TensorRecord], start: int) -> None:
    """Every byte after the header belongs to exactly one tensor."""
    end = start
    for record in records:
        if record.offset < end:
            raise _refusal(source, f"tensor '{printable(record.name)}' overlaps the one before it")
        if record.offset > end:
            raise _refusal(source, f"{record.offset - end} bytes before '{printable(record.name)}' belong to no tensor")
        end = record.offset + record.bytes
    if end != source.size:
        raise _refusal(source, f"{source.size - end} bytes at its end belong to no tensor")


def _refusal(source: ByteRanges, problem: str) -> CheckpointError:
    return CheckpointError(f"{source.name} is not a usable safetensors file: {problem}")
