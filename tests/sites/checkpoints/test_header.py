"""A header is believed only where it fits the file, and nothing in it can raise anything but CheckpointError."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints.header import LARGEST_HEADER, read_header


class Memory:
    """Bytes as a source of ranges, which records the largest read."""

    name = "file"

    def __init__(self, content: bytes, size: int | None = None) -> None:
        self.content = content
        self.size = len(content) if size is None else size
        self.largest = 0

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.largest = max(self.largest, len(buffer))
        buffer[:] = self.content[offset : offset + len(buffer)]

    def close(self) -> None:
        """Nothing to close."""


def framed(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def record(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_tensors_come_in_the_order_of_their_data_with_offsets_into_the_file() -> None:
    content = framed(
        {"b": record(offsets=[4, 12]), "a": record("BF16", [1, 2], [0, 4]), "__metadata__": {"k": "v"}}, bytes(12)
    )
    header = read_header(Memory(content))
    assert [(tensor.name, tensor.shape, tensor.bytes) for tensor in header.tensors] == [
        ("a", (1, 2), 4),
        ("b", (2,), 8),
    ]
    assert header.tensors[0].offset == len(content) - 12
    assert header.metadata == {"k": "v"}


def test_unknown_and_sub_byte_dtypes_are_listed_and_the_rest_is_read() -> None:
    header = read_header(
        Memory(framed({"q": record("Q7"), "a": record(offsets=[8, 16]), "f": record("F4", [4], [16, 18])}, bytes(18)))
    )
    assert [tensor.name for tensor in header.tensors] == ["a"]
    assert set(header.unreadable) == {"q", "f"}
    assert "Q7" in header.unreadable["q"]


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "no safetensors header"),
    "short length": (b"\x02\0\0\0", "no safetensors header"),
    "zero length": (bytes(8), "no safetensors header"),
    "header beyond the file": ((1000).to_bytes(8, "little") + b"{}", "claims 1000 bytes but the file has only 10"),
    "ten gigabytes": ((10 * 10**9).to_bytes(8, "little") + b"{}", "claims 10000000000 bytes, more than"),
    "no JSON": (framed(b"{nothing"), "not valid JSON"),
    "not an object": (framed([1, 2]), "not a JSON object"),
    "not UTF-8": (framed(b'{"\xff": 1}'), "not valid JSON in UTF-8"),
    "lone surrogate": (
        framed(b'{"\\ud800": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}', bytes(4)),
        "UTF-8",
    ),
    "deep nesting": (framed(b'{"a":' + b"[" * 100_000), "not valid JSON"),
    "long number": (framed(b'{"a":' + b"9" * 10_000 + b"}"), "not valid JSON"),
    "twice": (framed(b'{"a": 1, "a": 2}'), "'a' twice"),
    "metadata": (framed({"__metadata__": {"a": 1}}), "not a table of strings"),
    "metadata list": (framed({"__metadata__": []}), "not a table of strings"),
    "no record": (framed({"a": 3}), "lacks dtype"),
    "no offsets": (framed({"a": {"dtype": "F32", "shape": [2]}}), "lacks dtype"),
    "dtype a number": (framed({"a": record(dtype=3)}, bytes(8)), "dtype that is not text"),
    "negative size": (framed({"a": record(shape=[-2])}, bytes(8)), "shape"),
    "true as a size": (framed({"a": record(shape=[True, 2])}, bytes(8)), "shape"),
    "fraction": (framed({"a": record(shape=[2.0])}, bytes(8)), "shape"),
    "overflow": (framed({"a": record(shape=[2**40, 2**40])}, bytes(8)), "shape"),
    "overflow behind a zero": (framed({"a": record(shape=[0, 2**40, 2**40], offsets=[0, 0])}), "shape"),
    "too many axes": (framed({"a": record(shape=[1] * 65, offsets=[0, 4])}, bytes(4)), "shape"),
    "shape and bytes": (framed({"a": record(shape=[3])}, bytes(8)), "does not fit its 8 bytes"),
    "negative offset": (framed({"a": record(offsets=[-8, 0])}, bytes(8)), "data_offsets"),
    "offsets reversed": (framed({"a": record(offsets=[8, 0])}, bytes(8)), "data_offsets"),
    "one offset": (framed({"a": record(offsets=[8])}, bytes(8)), "data_offsets"),
    "truncated": (framed({"a": record()}, bytes(7)), "truncated"),
    "overlap": (framed({"a": record(), "b": record(offsets=[4, 12])}, bytes(12)), "overlaps"),
    "gap": (framed({"a": record(), "b": record(offsets=[12, 20])}, bytes(20)), "belong to no tensor"),
    "gap at the start": (framed({"a": record(offsets=[4, 12])}, bytes(12)), "belong to no tensor"),
    "bytes at the end": (framed({"a": record()}, bytes(9)), "1 bytes at its end"),
    "hostile name": (framed({"\x1b[2J<script>\n": record(shape=[9])}, bytes(8)), r"'\?<script>\?'"),
}


@pytest.mark.parametrize(("content", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_what_does_not_fit_is_refused_in_one_line(content: bytes, words: str) -> None:
    source = Memory(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_header(source)
    assert len(str(caught.value).splitlines()) == 1
    assert source.largest <= len(content)


def test_a_huge_claim_in_a_huge_file_is_not_believed() -> None:
    source = Memory((LARGEST_HEADER + 1).to_bytes(8, "little"), size=2**45)
    with pytest.raises(CheckpointError, match="more than the format's"):
        read_header(source)
    assert source.largest == 8


def test_names_are_data() -> None:
    name = "<script>alert(1)</script>\n\x1b[31m"
    assert read_header(Memory(framed({name: record()}, bytes(8)))).tensors[0].name == name


@given(st.binary(max_size=200))
def test_random_bytes(content: bytes) -> None:
    _read_or_refuse(content)


@given(st.binary(max_size=120), st.binary(max_size=40))
def test_random_headers(text: bytes, data: bytes) -> None:
    _read_or_refuse(framed(b"{" + text, data))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
RECORDS = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F8_E4M3", "F4", "X", "BOOL"]) | JSON,
        "shape": st.lists(st.integers(-1, 5), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-1, 64), min_size=2, max_size=2) | JSON,
    }
)


@given(st.dictionaries(st.text(max_size=3), RECORDS | JSON, max_size=3), st.integers(0, 64))
@settings(max_examples=100)
def test_headers_of_the_right_form_with_wrong_values(header: dict[str, Any], count: int) -> None:
    _read_or_refuse(framed(header, bytes(count)))


VALID = save({"layers.0.w": torch.ones(3, 4), "b": torch.zeros(5, dtype=torch.bfloat16)}, {"format": "pt"})


@given(st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=6))
@settings(max_examples=200)
def test_mutations_of_a_valid_file(changes: list[tuple[int, int]]) -> None:
    content = bytearray(VALID)
    for position, value in changes:
        content[position] = value
    _read_or_refuse(bytes(content))


@pytest.mark.parametrize("length", range(len(VALID)))
def test_truncated_at_every_byte(length: int) -> None:
    with pytest.raises(CheckpointError):
        read_header(Memory(VALID[:length]))


def _read_or_refuse(content: bytes) -> None:
    source = Memory(content)
    # Anything but this error would come out of here and fail the test.
    with suppress(CheckpointError):
        header = read_header(source)
        assert sum(tensor.bytes for tensor in header.tensors) <= len(content)
        assert all(0 <= tensor.offset <= tensor.offset + tensor.bytes <= len(content) for tensor in header.tensors)
    assert source.largest <= len(content)
