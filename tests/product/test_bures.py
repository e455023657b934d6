"""Small gaps and small imbalances against sixty digits."""

from __future__ import annotations

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.product.bures import bures
from rankwise.product.product import Product
from tests.product.draws import frame, gaussian

sizes = st.integers(1, 7)
seeds = st.integers(0, 2**31)


def exact_gap(product: Product) -> tuple[float, float, float]:
    """Gap, half-sum and nuclear norm in sixty digits."""
    with mpmath.workdps(60):
        left, right = (mpmath.matrix(factor.tolist()) for factor in product.factors)
        half_sum = (sum(entry**2 for entry in left) + sum(entry**2 for entry in right)) / 2
        values = mpmath.svd_r(left * right, compute_uv=False)
        return float(half_sum - sum(values)), float(half_sum), float(sum(values))


@pytest.mark.parametrize("condition", [0, 6, 15])
@pytest.mark.parametrize("offset", [1e-2, 1e-5, 1e-10, 1e-12])
def test_a_small_gap_is_right_to_its_error_bound_however_graded_the_factors(condition: int, offset: float) -> None:
    """Down to a gap of 1e-25 of the half-sum, where a difference of norms knows nothing below 1e-16."""
    values = torch.logspace(0, -condition, 5, dtype=torch.float64)
    turn = frame(5, 5, 3)
    left = frame(9, 5, 1) * values @ turn
    noise = gaussian((9, 5), 4).left
    p = Product(left * (1 + offset * noise), (frame(8, 5, 2) * values @ turn).mT)
    gap, half_sum, _ = exact_gap(p)
    assert 0 < gap < half_sum * offset**2
    report = bures(*p.factors)
    off = abs(report.gap.item() - gap)
    assert off <= report.error.item()
    assert report.error.item() <= 1e-12 * offset * half_sum
    assert off / gap < 1e-15 / offset * 10


def test_a_gap_of_1e_20_of_the_half_sum_is_exact_where_the_entries_are() -> None:
    """Diagonal factors leave no rounding but the last: twelve digits of a gap twenty digits down."""
    diagonal = torch.tensor([1.0, 0.5, 3.0, 7.0], dtype=torch.float64)
    shift = 1e-10 * torch.tensor([1.0, 2.0, 3.0, -4.0], dtype=torch.float64)
    p = Product(torch.diag(diagonal * (1 + shift)), torch.diag(diagonal))
    gap, half_sum, _ = exact_gap(p)
    assert gap < 1e-19 * half_sum
    assert bures(*p.factors).gap.item() == pytest.approx(gap, rel=1e-12)


@settings(max_examples=30)
@given(m=st.integers(4, 9), n=st.integers(4, 9), r=st.integers(1, 4), exponent=st.integers(0, 12), seed=seeds)
def test_imbalance_of_nearly_balanced_factors_does_not_cancel(m: int, n: int, r: int, exponent: int, seed: int) -> None:
    left = frame(m, r, seed) * 2.0
    right = 2.0 * frame(n, r, seed + 1).mT
    p = Product(left * (1 + 10.0**-exponent), right)
    with mpmath.workdps(50):
        left_exact, right_exact = (mpmath.matrix(factor.tolist()) for factor in p.factors)
        difference = left_exact.T * left_exact - right_exact * right_exact.T
    expected = torch.tensor([[float(x) for x in row] for row in difference.tolist()], dtype=torch.float64)
    torch.testing.assert_close(bures(*p.factors).imbalance, expected, rtol=0, atol=4e-14)


@settings(max_examples=30)
@given(m=sizes, r=sizes, n=sizes, scale=st.floats(-6, 6), rank=sizes, seed=seeds)
def test_bounds_hold_for_uneven_and_deficient_factors(
    m: int, r: int, n: int, scale: float, rank: int, seed: int
) -> None:
    low = gaussian((m, min(rank, r), r), seed)
    p = Product(low.dense() * 10**scale, gaussian((r, n), seed + 1).left)
    gap, _, nuclear = exact_gap(p)
    report = bures(*p.factors)
    assert abs(report.gap.item() - gap) <= report.error.item()
    assert abs(report.nuclear.item() - nuclear) <= report.nuclear_error.item()


@pytest.mark.parametrize("condition", [4, 6, 9, 12, 15, 20])
@pytest.mark.parametrize("size", [4, 8, 24])
def test_directions_far_below_roundoff_of_the_largest_stay_aligned(condition: int, size: int) -> None:
    """Square factors, whose core no triangle has graded: its decomposition alone turns the smallest at random."""
    values = torch.logspace(0, -condition, size, dtype=torch.float64)
    turn = frame(size, size, 3)
    p = Product(frame(size, size, 1) * values.sqrt() @ turn, (frame(size, size, 2) * values.sqrt() @ turn).mT)
    gap, half_sum, _ = exact_gap(p)
    report = bures(*p.factors)
    assert abs(report.gap.item() - gap) <= report.error.item()
    assert report.gap.item() < 1e-28 * size * half_sum


def test_a_batch_with_a_bad_matrix() -> None:
    p = gaussian((6, 3, 5), 0, batch=(3,))
    broken = p.right.clone()
    broken[1] = torch.nan
    report = bures(p.left, broken)
    assert list(report.failures) == [1]
    assert report.gap.isnan().tolist() == [False, True, False]
    assert report.error.isinf().tolist() == [False, True, False]
