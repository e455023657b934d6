"""The reduction keeps the product: singular values, ends and unexpanded batch axes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.product.chain import compact, contracted, half_chains
from rankwise.product.product import Product
from rankwise.product.triangular import reduce, reduce_with_ends
from tests.product.draws import gaussian

widths = st.lists(st.integers(1, 9), min_size=2, max_size=6)


@settings(max_examples=60, deadline=None)
@given(widths, st.integers(0, 2**31))
def test_ends_and_middle_multiply_to_the_product(sizes, seed):
    product = gaussian(sizes, seed, batch=(2,))
    ends = reduce_with_ends(product)
    dense = product.dense()
    rebuilt = ends.left_end @ ends.left @ ends.right.mT @ ends.right_end.mT
    torch.testing.assert_close(rebuilt, dense, rtol=0, atol=1e-12 * float(dense.norm() + 1))
    for end in (ends.left_end, ends.right_end):
        gram = end.mT @ end
        torch.testing.assert_close(gram, torch.eye(gram.shape[-1], dtype=gram.dtype).expand(gram.shape))


@settings(max_examples=60, deadline=None)
@given(widths, st.integers(0, 2**31))
def test_reduced_factors_are_as_small_as_the_narrowest_width(sizes, seed):
    product = gaussian(sizes, seed)
    left, right = reduce(product)
    assert left.shape == right.shape == (min(sizes), min(sizes))
    expected = torch.linalg.svdvals(product.dense())[: product.max_rank]
    torch.testing.assert_close(torch.linalg.svdvals(left @ right.mT), expected, rtol=0, atol=1e-11 * float(expected[0]))


def test_a_shared_factor_is_reduced_once():
    queries, keys = torch.randn(3, 4, 8, 2), torch.randn(3, 1, 2, 8)
    left, right = reduce(Product(queries, keys))
    assert left.shape == (3, 4, 2, 2)
    assert right.shape == (3, 1, 2, 2)
    expanded = reduce(Product(queries, keys.expand(3, 4, 2, 8)))[1]
    assert expanded.shape == (3, 1, 2, 2)


def test_wide_inner_widths_are_multiplied_away_widest_first():
    factors = [torch.randn(3, 7), torch.randn(7, 20), torch.randn(20, 5), torch.randn(5, 4)]
    result = contracted(factors)
    sizes = [result[0].shape[0], *(factor.shape[1] for factor in result)]
    assert sizes == [3, 5, 4] or sizes == [3, 4]
    dense = factors[0].double() @ factors[1].double() @ factors[2].double() @ factors[3].double()
    rebuilt = result[0]
    for factor in result[1:]:
        rebuilt = rebuilt @ factor.double()
    torch.testing.assert_close(rebuilt, dense)


def test_halves_end_in_the_narrowest_width():
    left, right = half_chains(gaussian([9, 6, 2, 5, 7], 0))
    assert [tuple(factor.shape) for factor in left] == [(9, 6), (6, 2)]
    assert [tuple(factor.shape) for factor in right] == [(7, 5), (5, 2)]
    assert half_chains(gaussian([2, 6], 0))[0] == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_lower_types_are_promoted_exactly(dtype):
    product = gaussian([6, 3, 5], 1, dtype=dtype)
    left, right = reduce(product)
    assert left.dtype == right.dtype == torch.float64
    expected = torch.linalg.svdvals(product.to(torch.float64).dense())[:3]
    torch.testing.assert_close(torch.linalg.svdvals(left @ right.mT), expected)


def test_compact_leaves_true_axes_alone():
    assert compact(torch.ones(3, 1, 2, 2)).shape == (3, 1, 2, 2)
    assert compact(torch.ones(2, 2).expand(5, 2, 2)).shape == (1, 2, 2)
