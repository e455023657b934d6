"""The constants and conversions that error bounds are made of."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.product.bounds import (
    accumulation,
    column_lengths,
    error_of_roots,
    frobenius_norm,
    largest_eigenvalue_bound,
)
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
@pytest.mark.parametrize("rows", [5, 64, 700, 5000])
def test_roundings_that_all_lean_the_same_way_are_covered(rows, dtype):
    generator = torch.Generator().manual_seed(rows)
    for _ in range(8):
        x, y = (torch.rand((), generator=generator, dtype=dtype) + 0.5 for _ in range(2))
        product = Product(x.expand(rows, 3), y.expand(3, rows))
        largest = 3 * rows * float(x) * float(y)
        for method in ("gram32", "gram64", "qr"):
            found = spectrum(product, method=method)
            # The reference is itself a product of four rounded numbers.
            assert abs(float(found.values[0]) - largest) <= float(found.error[0]) + 1e-15 * largest
            assert bool((found.values[1:] <= found.error[1:]).all())


def test_accumulation_is_the_worst_case_for_short_sums_and_grows_with_the_root_of_long_ones():
    assert accumulation(1) == 3.0
    assert accumulation(10_000) == 800.0
