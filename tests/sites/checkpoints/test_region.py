"""Any index reads what torch's own indexing gives, and only the bytes it needs."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import UserError
from rankwise.sites.checkpoints import region
from rankwise.sites.checkpoints.ranges import LocalRanges
from rankwise.sites.checkpoints.region import Placed, read_region


def raw(tensor: torch.Tensor) -> bytes:
    """The tensor's bytes, row-major."""
    return bytes(tensor.flatten().view(torch.uint8).tolist())


class Counted(LocalRanges):
    """Counts the bytes that are read."""

    count = 0

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.count += len(buffer)
        super().read_into(offset, buffer)


@st.composite
def indexed(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[slice | int, ...]]:
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=0, max_size=4)))
    index: list[slice | int] = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        position = st.none() | st.integers(-9, 9)
        cut = st.builds(slice, position, position, st.none() | st.integers(1, 3))
        index.append(draw(cut | st.integers(-size, size - 1) if size else cut))
    return shape, tuple(index)


@given(indexed(), st.integers(1, 400), st.integers(0, 9))
@settings(max_examples=150)
def test_any_index_equals_torch(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[tuple[int, ...], tuple[slice | int, ...]],
    largest_span: int,
    offset: int,
) -> None:
    shape, index = case
    whole = torch.arange(prod(shape), dtype=torch.int16).view(shape)
    path = tmp_path_factory.getbasetemp() / "region.bin"
    path.write_bytes(bytes(offset) + raw(whole))
    source = LocalRanges(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region, "LARGEST_SPAN", largest_span)
        part = read_region(Placed(source, offset=offset, shape=shape, dtype=torch.int16), index)
    source.close()
    assert part.shape == whole[index].shape
    assert torch.equal(part, whole[index])
    assert part.is_contiguous()


def test_rows_cost_their_own_bytes_and_columns_one_pass(tmp_path: Path) -> None:
    whole = torch.arange(64 * 1000, dtype=torch.int32).view(64, 1000)
    path = tmp_path / "x"
    path.write_bytes(raw(whole))
    source = Counted(path)
    placed = Placed(source, offset=0, shape=(64, 1000), dtype=torch.int32)
    read_region(placed, (slice(7, 9),))
    assert source.count == 2 * 4000
    source.count = 0
    read_region(placed, (slice(None), slice(5, 8)))
    assert source.count <= 64 * 4000
    source.close()


@pytest.mark.parametrize(
    "index",
    [(3,), (-4,), (slice(None, None, -1),), (0, 0, 0), [0], ("a",)],
    ids=["high", "low", "step", "axes", "list", "text"],
)
def test_an_index_that_cannot_be_is_told(index: object) -> None:
    with pytest.raises(UserError):
        region.bounds(index, (3, 2))  # pyright: ignore[reportArgumentType]
