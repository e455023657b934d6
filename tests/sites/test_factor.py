"""A factor is a view: what is written into it lands in the parameter, and a pattern that would copy is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rankwise.sites.factor import Factor, LayoutError

SIZES = {"h": 3, "r": 2}


def stored(*shape: int) -> Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


@pytest.mark.parametrize(
    ("factor", "shape", "expected"),
    [
        (Factor("q", "(h r) d -> h d r", sizes=SIZES), (6, 5), (3, 5, 2)),
        (Factor("q", "d (part h r) -> part h d r", sizes=SIZES, take=1), (5, 18), (3, 5, 2)),
        (Factor("q", "(h part r) d -> part h r d", sizes=SIZES, take=2), (18, 5), (3, 2, 5)),
        (Factor("q", "(h part) d -> h d part", sizes={"h": 3}, take=(0, 2)), (12, 5), (3, 5, 2)),
        (Factor("k", "(h r) d -> h 1 r d", sizes=SIZES), (6, 5), (3, 1, 2, 5)),
        (Factor("k", "c d -> c d", rows=(2, 6)), (9, 5), (4, 5)),
        (Factor("o", "d (h r) -> h d r", sizes=SIZES), (5, 6), (3, 5, 2)),
        (Factor("q", "d h r -> h d r"), (5, 3, 2), (3, 5, 2)),
    ],
    ids=lambda value: value.pattern if isinstance(value, Factor) else None,
)
def test_a_factor_is_a_view_that_reaches_the_parameter(factor, shape, expected):
    parameter = nn.Parameter(stored(*shape))
    view = factor.view(parameter)
    assert view.shape == expected == factor.shape(shape)
    before = parameter.detach().clone()
    with torch.no_grad():
        view.mul_(2.0)
    changed = parameter.detach() != before
    assert changed.sum() == sum(value != 0 for value in factor.view(before).flatten().tolist())
    assert torch.equal(factor.view(parameter), 2.0 * factor.view(before))


def test_the_pattern_puts_each_number_where_it_says():
    fused = stored(6 * 3, 4)
    key = Factor("qkv", "(h part r) d -> part h r d", sizes=SIZES, take=1).view(fused)
    for head in range(3):
        for dimension in range(2):
            assert torch.equal(key[head, dimension], fused[head * 6 + 2 + dimension])


def test_a_reader_that_cut_the_rows_itself_arranges_the_same():
    factor = Factor("kv", "(h r) d -> h r d", sizes={"h": 2}, rows=(2, 6))
    tensor = stored(8, 3)
    assert torch.equal(factor.arrange(tensor[2:6]), factor.view(tensor))


def test_a_pattern_that_would_copy_is_refused_with_name_shape_and_pattern():
    merged = Factor("blocks.0.q", "(h r) d -> r (h d)", sizes=SIZES)
    message = r"the pattern '\(h r\) d -> r \(h d\)' copies blocks\.0\.q of shape \(6, 5\): a factor must be a view"
    with pytest.raises(LayoutError, match=message):
        merged.view(stored(6, 5))


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        (
            Factor("a.q", "(h r) d -> h d r", sizes={"h": 4, "r": 2}),
            r"'\(h r\) d -> h d r' with h = 4, r = 2 does not fit a\.q of shape \(6, 5\): .*6.*8",
        ),
        (Factor("a.q", "h r d -> h d r"), r"with no sizes does not fit a\.q of shape \(6, 5\): "),
        (Factor("a.q", "a b -> a b", rows=(4, 9)), r"a\.q has shape \(6, 5\): rows 4 to 9 do not lie inside it"),
        (Factor("a.q", "a b -> a b", rows=(4, 4)), r"rows 4 to 4 do not lie inside it"),
        (Factor("a.q", "(part r) d -> part r d", sizes={"r": 2}, take=3), r"a\.q has 3 parts under .*: there is no 3"),
        (Factor("a.q", "(part r) d -> part r d", sizes={"r": 2}, take=(2, 5)), r"there is no \(2, 5\)"),
        (Factor("a.q", "(part r) d -> part r d", sizes={"r": 2}, take=-1), r"there is no -1"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(factor, message):
    with pytest.raises(LayoutError, match=message) as caught:
        factor.shape((6, 5))
    assert "\n" not in str(caught.value)


@settings(max_examples=60)
@given(
    heads=st.integers(1, 4), size=st.integers(1, 4), width=st.integers(1, 5), parts=st.integers(1, 3), data=st.data()
)
def test_every_order_of_a_fused_axis_splits_and_comes_back(heads, size, width, parts, data):
    order = data.draw(st.permutations(["h", "part", "r"]))
    take = data.draw(st.integers(0, parts - 1))
    tensor = torch.randn(heads * size * parts, width)
    sizes = {"h": heads, "r": size, "part": parts}
    view = Factor("w", f"({' '.join(order)}) d -> part h r d", sizes=sizes, take=take).view(tensor)
    split = tensor.reshape(*(sizes[axis] for axis in order), width)
    expected = split.permute(order.index("part"), order.index("h"), order.index("r"), 3)[take]
    assert torch.equal(view, expected)
    assert view.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


def test_axes_are_those_of_the_result():
    factor = Factor("w", "(h part r) d -> part h 1 r d", take=0)
    assert factor.stored_axes == ["h", "part", "r", "d"]
    assert factor.axes == ["h", "1", "r", "d"]
    assert Factor("w", "(h part) d -> h part d", take=(0, 2)).axes == ["h", "part", "d"]
