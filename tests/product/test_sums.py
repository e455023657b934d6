"""Sums and changes are products again, and a change keeps its small singular values."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import UserError
from rankwise.product.norms import frobenius
from rankwise.product.product import Product
from rankwise.product.sums import change
from tests.product.draws import gaussian

seeds = st.integers(0, 2**31)
inner = st.lists(st.integers(1, 5), max_size=3)


@settings(max_examples=40, deadline=None)
@given(inner, inner, seeds)
def test_sums_and_differences_agree_with_the_matrices(one_inner, two_inner, seed):
    one, two = gaussian([4, *one_inner, 6], seed, batch=(2,)), gaussian([4, *two_inner, 6], seed + 1)
    torch.testing.assert_close((one + two).dense(), one.dense() + two.dense())
    torch.testing.assert_close((one - two).dense(), one.dense() - two.dense())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=5), seeds)
def test_a_change_of_equal_shapes_agrees_with_the_matrices(sizes, seed):
    one, two = gaussian(sizes, seed), gaussian(sizes, seed + 1)
    difference = one - two
    torch.testing.assert_close(difference.dense(), one.dense() - two.dense())
    assert difference.start is not None
    torch.testing.assert_close(difference.start.norm, torch.linalg.matrix_norm(two.dense()))


def test_only_axes_that_differ_are_expanded():
    queries, keys = torch.randn(3, 4, 5, 2), torch.randn(3, 1, 2, 5)
    one = Product(queries, keys)
    total = one + Product(torch.randn(1, 4, 5, 2), torch.randn(3, 1, 2, 5))
    assert total.left.shape == (3, 4, 5, 4)
    assert total.right.shape == (3, 1, 4, 5)
    assert (one - Product(queries.clone(), keys + 1)).right.shape == (3, 1, 4, 5)


def test_sums_are_marked_and_single_matrices_just_add():
    one = gaussian([3, 2, 3], 0)
    assert (one + one).is_sum
    assert (one - one).is_sum
    single = gaussian([3, 3], 0)
    assert (single + single).depth == (single - single).depth == 1
    assert not (single + single).is_sum


def test_a_change_keeps_small_singular_values_where_the_naive_form_loses_them():
    torch.manual_seed(0)
    start = Product(torch.randn(96, 8), torch.randn(8, 96))
    end = Product(*(factor * (1 + 1e-5 * torch.randn_like(factor)) for factor in start.factors))
    truth = torch.linalg.svdvals(end.to(torch.float64).dense() - start.to(torch.float64).dense())[:16]

    change = (end - start).spectrum("gram32")
    naive = Product(torch.cat([end.left, -start.left], -1), torch.cat([end.right, start.right], -2)).spectrum("gram32")
    assert float((change.values - truth).abs().amax() / truth[0]) < 2e-5
    assert bool(((change.values - truth).abs() <= change.error).all())
    # The bound of the naive form says so itself: it is wrong by more than its largest value.
    assert float((naive.values - truth).abs().amax() / truth[0]) > 1
    assert bool(((naive.values - truth).abs() <= naive.error).all())


def test_a_change_below_the_floor_has_no_rank():
    torch.manual_seed(0)
    start = Product(torch.randn(4, 9, 3), torch.randn(4, 3, 9))
    moved = start.left.clone()
    moved[1] *= 1 + 1e-3
    moved[2, 0, 0] += 3e-7 * moved[2, 0, 0].abs().clamp_min(1)
    moved[3] = torch.nan
    change = Product(moved, start.right) - start
    spectrum = change.spectrum()
    assert spectrum.failures[0].startswith("unchanged")
    assert "below 1e-06 of the start" in spectrum.failures[2]
    assert "NaN" in spectrum.failures[3]
    assert set(spectrum.failures) == {0, 2, 3}
    assert spectrum.values[1].isfinite().all()
    assert spectrum.values[[0, 2, 3]].isnan().all()
    assert spectrum.error[[0, 2, 3]].isposinf().all()


def test_the_floor_follows_transposes_scalars_and_indices():
    torch.manual_seed(0)
    start = Product(torch.randn(2, 9, 3), torch.randn(2, 3, 9))
    tiny = Product(start.left * (1 + 2.0**-23), start.right) - start
    for product in (tiny, tiny.T, 100 * tiny, -tiny, tiny[:1], tiny.to(torch.float64), tiny.detach()):
        assert set(product.spectrum().failures) == set(range(product.count))


def test_a_change_from_zero_counts_however_small():
    start = Product(torch.zeros(6, 2), torch.randn(2, 6))
    change = Product(torch.full((6, 2), 1e-9), start.right) - start
    assert not change.spectrum().failures


def test_changes_of_half_precision_are_taken_in_float32():
    one = Product(torch.ones(4, 2, dtype=torch.bfloat16), torch.ones(2, 4, dtype=torch.bfloat16))
    assert (one - one).dtype == torch.float32


@pytest.mark.parametrize("scale", [1e-170, 1.0, 1e200])
@pytest.mark.parametrize("sizes", [[5, 3, 6], [3, 6], [4, 2, 5, 3], [2, 7, 2]])
def test_frobenius_norm_at_any_scale(sizes, scale):
    product = gaussian(sizes, 0, batch=(2,))
    scaled = Product(product.left * scale, *product.factors[1:])
    torch.testing.assert_close(
        frobenius(scaled).value, scale * torch.linalg.matrix_norm(product.dense()), rtol=1e-12, atol=0
    )


def test_what_cannot_be_added_is_refused_in_one_line():
    one = gaussian([3, 2, 3], 0, batch=(2,))
    for other, message in (
        (gaussian([4, 2, 3], 0), "different shapes"),
        (gaussian([3, 2, 3], 0, batch=(3,)), "do not broadcast"),
        (one.to("meta"), "move one with"),
    ):
        for operation in (Product.__add__, Product.__sub__):
            with pytest.raises(UserError, match=message) as error:
                operation(one, other)
            assert "\n" not in str(error.value)


def test_a_norm_of_the_start_that_is_known_is_taken():
    start = Product(torch.randn(2, 9, 3), torch.randn(2, 3, 9))
    end = Product(start.left + 1e-3, start.right)
    one, two = end - start, change(end, start, start_norm=torch.full((2,), 1e9, dtype=torch.float64))
    assert torch.equal(one.dense(), two.dense())
    assert not one.spectrum().failures
    assert two.spectrum().failures.keys() == {0, 1}, "below its floor a change has no rank"
