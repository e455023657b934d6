"""Heads that share a factor, stacked into one factorization and taken apart again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import UserError
from rankwise.product.balance import balance
from rankwise.product.groups import balanced_group, concatenated, separated
from rankwise.product.product import Product
from tests.product.draws import gaussian


def heads(shared: str, axis: int, *, members: int = 3) -> Product:
    """Two groups of heads, with the members along a batch axis and one factor shared."""
    batch = [2, 2]
    batch[axis] = members
    p = gaussian((5, 3, 4), 0, batch=tuple(batch))
    if shared == "right":
        return Product(p.left, p.right.narrow(axis, 0, 1))
    return Product(p.left.narrow(axis, 0, 1), p.right)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shared", ["left", "right"])
def test_a_group_is_stacked_along_the_outer_side_of_what_varies(shared: str, axis: int) -> None:
    p = heads(shared, axis)
    joined = concatenated(p, axis)
    assert joined.batch_shape == (2,)
    members = p.dense().unbind(axis)
    expected = torch.cat(members, -2 if shared == "right" else -1)
    torch.testing.assert_close(joined.dense(), expected)
    apart = separated(joined, axis, 3, shared=shared)
    assert [factor.shape for factor in apart.factors] == [factor.shape for factor in p.factors]
    for one, two in zip(apart.factors, p.factors, strict=True):
        assert torch.equal(one, two)


@settings(max_examples=20)
@given(axis=st.integers(-2, 1), shared=st.sampled_from(["left", "right"]))
def test_balancing_a_group_keeps_the_heads_and_the_sharing_and_drops_the_half_sum_by_the_gap(
    axis: int, shared: str
) -> None:
    p = heads(shared, axis % 2)
    moved = balanced_group(p, axis)
    assert [factor.shape for factor in moved.factors] == [factor.shape for factor in p.factors]
    torch.testing.assert_close(moved.dense(), p.dense(), rtol=1e-11, atol=1e-11)
    before, after = balance(p, group=axis), balance(moved, group=axis)
    torch.testing.assert_close(before.half_sum - after.half_sum, before.gap, rtol=1e-11, atol=0)
    assert (after.relative < 1e-25).all()
    torch.testing.assert_close(after.half_sum, before.nuclear, rtol=1e-11, atol=0)


def test_a_factor_without_the_axis_or_expanded_along_it_counts_as_shared() -> None:
    queries, keys = torch.randn(2, 3, 5, 4), torch.randn(4, 6)
    assert concatenated(Product(queries, keys), 1).shape == (2, 15, 6)
    expanded = torch.randn(2, 1, 4, 6).expand(2, 3, 4, 6)
    assert concatenated(Product(queries, expanded), 1).shape == (2, 15, 6)


def test_what_is_no_group_is_refused() -> None:
    p = gaussian((5, 3, 4), 0, batch=(2, 3))
    with pytest.raises(UserError, match="neither factor"):
        concatenated(p, 1)
    with pytest.raises(UserError, match="no axis 2"):
        concatenated(p, 2)
    with pytest.raises(UserError, match="two factors"):
        concatenated(gaussian((5, 3, 2, 4), 0, batch=(2,)), 0)
    with pytest.raises(UserError, match="'left' or 'right'"):
        separated(gaussian((6, 3, 4), 0), 0, 2, shared="both")
