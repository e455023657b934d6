"""The constants and conversions that error bounds are made of."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.product.bounds import (
    accumulation,
    blocked,
    column_lengths,
    error_of_roots,
    frobenius_norm,
    largest_eigenvalue_bound,
    leaning,
    worst_case,
)
from rankwise.product.leading import outline
from rankwise.product.norms import frobenius
from rankwise.product.product import Product
from rankwise.product.spectrum import spectrum
from tests.product.draws import frame


@settings(max_examples=60, deadline=None)
@given(st.lists(st.just(0.0) | st.floats(1e-100, 1e3), min_size=1, max_size=8), st.integers(0, 2**31))
def test_largest_eigenvalue_is_bounded_and_never_worse_than_the_norm(eigenvalues, seed):
    turn = frame(len(eigenvalues), len(eigenvalues), seed)
    gram = turn * torch.tensor(eigenvalues, dtype=torch.float64) @ turn.mT
    bound = float(largest_eigenvalue_bound(gram))
    assert max(eigenvalues) * (1 - 1e-12) <= bound <= 1.01 * float(torch.linalg.matrix_norm(gram)) * (1 + 1e-6)


def test_norms_of_tiny_matrices_do_not_underflow():
    tiny = torch.diag(torch.tensor([1e-200, 1e-210], dtype=torch.float64))
    assert float(frobenius_norm(tiny)) == 1e-200
    assert column_lengths(tiny).tolist() == [1e-200, 1e-210]


@settings(max_examples=100, deadline=None)
@given(st.just(0.0) | st.floats(1e-100, 1e3), st.floats(-1e3, 1e3))
def test_error_of_roots_covers_every_true_value(true, shift):
    computed = max(true**2 + shift, 0.0)
    values = torch.tensor([computed], dtype=torch.float64).sqrt()
    error = error_of_roots(values, torch.tensor(abs(shift) * (1 + 1e-12), dtype=torch.float64))
    assert abs(float(values) - true) <= float(error) + 1e-12 * true
    assert float(error) <= math.sqrt(abs(shift)) * (1 + 1e-9) + 1e-12 * float(values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "width"), [(5, 3), (64, 3), (700, 3), (5000, 3), (20_000, 16)])
def test_roundings_that_all_lean_the_same_way_are_covered(rows, width, dtype):
    """Equal entries: every partial sum is rounded in the same direction, on a machine that adds them up in order."""
    for x, y in draws_of_two(dtype, rows):
        product = Product(x.repeat(rows, width), y.repeat(width, rows))
        largest = width * rows * float(x) * float(y)
        for method in ("gram32", "gram64", "qr"):
            found = spectrum(product, method=method)
            # The reference is itself a product of four rounded numbers.
            assert abs(float(found.values[0]) - largest) <= float(found.error[0]) + 1e-15 * largest
            assert bool((found.values[1:] <= found.error[1:]).all())
        norm = frobenius(product)
        assert abs(float(norm.value) - largest) <= float(norm.error) + 1e-15 * largest


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [70, 1500])
def test_matrices_whose_entries_are_all_equal(size, dtype):
    for x, _ in draws_of_two(dtype, size, times=1 if size > 1000 else 8):
        product = Product(x.repeat(size, size))
        largest = size * float(x)
        for found in (outline(product)["frobenius_norm"], outline(product)["operator_norm"], frobenius(product)):
            assert abs(float(found.value) - largest) <= float(found.error) + 1e-15 * largest
        for method in ("gram32", "gram64"):
            found = spectrum(product, method=method)
            assert abs(float(found.values[0]) - largest) <= float(found.error[0]) + 1e-15 * largest


def draws_of_two(dtype: torch.dtype, seed: int, *, times: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.rand(2, generator=generator, dtype=dtype) + 0.5) for _ in range(times)]


def test_accumulation_is_the_worst_case_for_short_sums_and_grows_with_the_root_of_long_ones():
    assert accumulation(1) == worst_case(1) == 3.0
    assert accumulation(10_000) == 800.0
    assert accumulation(10_000) + leaning(10_000) == worst_case(10_000)
    assert blocked(10_000) < accumulation(10_000)
