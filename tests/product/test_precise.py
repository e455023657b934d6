"""High relative accuracy of tiny values, and the pieces it is made of."""

from __future__ import annotations

import mpmath
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankwise.product.precise import jacobi, pivoted_triangle, precise_values, rounds
from rankwise.product.product import Product
from rankwise.product.spectrum import spectrum
from tests.product.draws import frame, gaussian
from tests.product.test_spectrum import exact_values

seeds = st.integers(0, 2**31)


@settings(max_examples=20, deadline=None)
@given(st.floats(10, 140), seeds)
def test_graded_columns_keep_every_digit(decades, seed):
    product = gaussian([6, 4, 5], seed)
    grades = 10 ** torch.linspace(0, -decades, 4, dtype=torch.float64)
    graded = Product(product.left * grades, product.right)
    found = precise_values(graded)
    for value, error, true in zip(found.values.tolist(), found.error.tolist(), exact_values(graded, 200), strict=True):
        assert abs(mpmath.mpf(value) - true) <= error
        assert error <= 1e-9 * float(true)


def test_values_far_below_rounding_are_right_where_grams_and_qr_drown():
    values = [1.0, 1e-30, 1e-100]
    left, right = frame(7, 3, 0) * torch.tensor(values, dtype=torch.float64), frame(5, 3, 1)[:3, :3]
    product = Product(left, right)
    found, truth = precise_values(product), exact_values(product, 200)
    assert all(abs(value / true - 1) < 1e-13 for value, true in zip(found.values.tolist(), truth, strict=True))
    assert bool((spectrum(product, method="qr").error[1:] > found.values[1:]).all())


@settings(max_examples=20, deadline=None)
@given(st.integers(-300, 300), seeds)
@example(-157, 0)
def test_a_gauge_of_one_column_as_far_as_float64_reaches(decade, seed):
    """Found by a search for broken bounds: squares of the graded columns underflowed while they were sorted."""
    product = gaussian([5, 2, 4], seed)
    left, right = product.left.clone(), product.right.clone()
    left[:, 0] *= 10.0**decade
    right[0] *= 10.0**-decade
    moved = Product(left, right)
    found = precise_values(moved) if abs(decade) < 60 else spectrum(moved, method="precise")
    for value, error, true in zip(found.values.tolist(), found.error.tolist(), exact_values(moved, 700), strict=True):
        assert abs(mpmath.mpf(value) - true) <= error <= 1e-9 * float(true)


def test_columns_out_of_reach_are_not_claimed():
    grades = torch.tensor([1.0, 1e-290], dtype=torch.float64)
    found = precise_values(Product(gaussian([5, 2], 0).left * grades, gaussian([2, 4], 1).left))
    assert float(found.error[1]) > float(found.values[1])


def test_no_more_is_claimed_than_the_factors_determine():
    turn = frame(3, 3, 0) * torch.tensor([1.0, 1e-8, 1e-16], dtype=torch.float64) @ frame(3, 3, 1)
    product = Product(gaussian([5, 3], 2).left @ turn, gaussian([3, 4], 3).left)
    found = precise_values(product)
    truth = exact_values(product, 200)
    assert float(found.error[-1]) > float(truth[-1])
    for value, error, true in zip(found.values.tolist(), found.error.tolist(), truth, strict=True):
        assert abs(mpmath.mpf(value) - true) <= error


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 7), st.integers(1, 7), seeds)
def test_pivoted_triangle_is_a_qr_of_the_sorted_columns(rows, columns, seed):
    matrix = gaussian([rows, columns], seed, batch=(3,)).left
    triangle, order = pivoted_triangle(matrix)
    chosen = torch.take_along_dim(matrix, order[:, None, :], -1)
    torch.testing.assert_close(triangle.mT @ triangle, chosen.mT @ chosen)
    diagonal = triangle.diagonal(dim1=-2, dim2=-1).abs()
    assert bool((diagonal[:, 1:] <= diagonal[:, :-1] * (1 + 1e-12)).all())
    assert order.sort(-1).values.tolist() == [list(range(columns))] * 3


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 7), st.integers(1, 7), seeds)
def test_jacobi_agrees_with_lapack(rows, columns, seed):
    matrix = gaussian([rows, columns], seed, batch=(2,)).left
    values, cosine, residual = jacobi(matrix)
    expected = torch.linalg.svdvals(matrix)
    torch.testing.assert_close(values[:, : min(rows, columns)], expected, rtol=1e-11, atol=1e-13)
    assert bool((residual < 1e-13).all())
    if columns <= rows:
        assert bool((cosine < 1e-14).all())


@pytest.mark.parametrize("columns", [1, 2, 3, 6, 9])
def test_every_pair_meets_once_and_nobody_plays_twice_in_a_round(columns):
    schedule = rounds(columns)
    met = [tuple(sorted(pair)) for one, two in schedule for pair in zip(one, two, strict=True)]
    assert sorted(met) == [(a, b) for a in range(columns) for b in range(a + 1, columns)]
    assert all(len({*one, *two}) == 2 * len(one) for one, two in schedule)
