"""Chains: the Schatten-2/L bound, its equality under balance, and every junction."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import UserError
from rankwise.product.balance import balance
from rankwise.product.chain_balance import chain_balance
from rankwise.product.product import Product
from tests.product.draws import gaussian


@settings(max_examples=50)
@given(widths=st.lists(st.integers(1, 7), min_size=3, max_size=6), scale=st.floats(-2, 2), seed=st.integers(0, 2**31))
def test_mean_square_is_at_least_the_schatten_quasi_norm(widths: list[int], scale: float, seed: int) -> None:
    p = gaussian(widths, seed)
    p = Product(p.left * 10**scale, *p.factors[1:])
    report = chain_balance(p)
    values = torch.linalg.svdvals(p.dense())[: min(widths)]
    expected = values.pow(2 / p.depth).sum().item()
    assert abs(report.schatten.item() - expected) <= report.error.item() + 1e-9 * expected
    assert report.mean_square.item() >= report.schatten.item() * (1 - 1e-9)
    assert len(report.junctions) == p.depth - 1


@settings(max_examples=30)
@given(widths=st.lists(st.integers(1, 7), min_size=4, max_size=6), seed=st.integers(0, 2**31))
def test_balanced_chains_reach_it_and_balance_at_every_junction(widths: list[int], seed: int) -> None:
    p = gaussian(widths, seed).balanced()
    report = chain_balance(p)
    assert report.mean_square.item() == pytest.approx(report.schatten.item(), rel=1e-6)
    assert abs(report.relative.item()) < 1e-6
    for junction in report.junctions:
        assert junction.relative_imbalance.item() < 1e-12
        assert junction.relative.item() < 1e-24


def test_two_factors_give_the_numbers_of_balance() -> None:
    p = gaussian((6, 3, 5), 0, batch=(4,))
    chain, pair = chain_balance(p), balance(p)
    torch.testing.assert_close(chain.mean_square, pair.half_sum)
    torch.testing.assert_close(chain.schatten, pair.nuclear)
    torch.testing.assert_close(chain.gap, pair.gap, rtol=1e-9, atol=0)


def test_descent_on_three_factors_ends_where_the_quasi_norm_says() -> None:
    """Live values solve `s - t + decay * s^(2/L - 1) = 0` for targets `t`, here with `L = 3`."""
    target = torch.diag(torch.tensor([3.0, 2.0], dtype=torch.float64))
    one, two, three = (torch.eye(2, dtype=torch.float64) + 0.2 * factor for factor in gaussian((2, 2, 2, 2), 1).factors)
    rate, decay = 0.02, 0.2
    for _ in range(6000):
        gradient = one @ two @ three - target
        one, two, three = (
            one - rate * (gradient @ (two @ three).mT + decay * one),
            two - rate * (one.mT @ gradient @ three.mT + decay * two),
            three - rate * ((one @ two).mT @ gradient + decay * three),
        )
    report = chain_balance(Product(one, two, three))
    values = torch.linalg.svdvals(one @ two @ three)
    left_over = values - target.diagonal() + decay * values.pow(-1 / 3)
    assert left_over.abs().max().item() < 1e-8
    assert abs(report.relative.item()) < 1e-8
    assert all(junction.relative_imbalance.item() < 1e-6 for junction in report.junctions)


def test_bad_matrices_are_marked_and_single_matrices_refused() -> None:
    p = gaussian((5, 3, 4, 6), 0, batch=(3,))
    broken = p.inner[0].clone()
    broken[2, 0, 0] = torch.nan
    report = chain_balance(Product(p.left, broken, p.right))
    assert set(report.failures) == {2}
    assert report.gap[2].isnan()
    assert report.gap[:2].isfinite().all()
    with pytest.raises(UserError, match="single matrix"):
        chain_balance(Product(p.left))
    with pytest.raises(UserError, match="sum or a change"):
        chain_balance(p + p)


def test_zero_chains_are_balanced() -> None:
    report = chain_balance(Product(*[torch.zeros(2, 2)] * 3))
    assert report.gap.item() == report.relative.item() == 0.0
