"""Gauge moves leave the matrices alone; projections are the best there are; weights are square roots."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import UserError
from rankwise.product.balance import balance
from rankwise.product.gauge import transform
from rankwise.product.product import Product
from tests.product.draws import frame, gaussian, with_values

widths = st.lists(st.integers(1, 7), min_size=2, max_size=5)
seeds = st.integers(0, 2**31)


@settings(max_examples=60)
@given(widths=widths, seed=seeds)
def test_balancing_keeps_matrices_and_widths(widths: list[int], seed: int) -> None:
    p = gaussian(widths, seed, batch=(2,))
    moved = p.balanced()
    assert [factor.shape for factor in moved.factors] == [factor.shape for factor in p.factors]
    scale = float(torch.linalg.matrix_norm(p.dense()).max())
    torch.testing.assert_close(moved.dense(), p.dense(), rtol=0, atol=1e-12 * scale)


@settings(max_examples=40)
@given(m=st.integers(1, 7), r=st.integers(1, 7), n=st.integers(1, 7), seed=seeds)
def test_balancing_drops_the_half_sum_by_the_gap(m: int, r: int, n: int, seed: int) -> None:
    p = gaussian((m, r, n), seed)
    before, after = balance(p), balance(p.balanced())
    assert (before.half_sum - after.half_sum).item() == pytest.approx(
        before.gap.item(), abs=1e-12 * before.half_sum.item()
    )
    assert after.relative.item() < 1e-24
    assert after.relative_imbalance.item() < 1e-12


def test_outputs_of_a_balanced_single_precision_product_stay_within_its_rounding() -> None:
    p = gaussian((64, 8, 48), 0, dtype=torch.float32)
    inputs = torch.randn(48, 100, generator=torch.Generator().manual_seed(1))
    before, after = p.left @ (p.right @ inputs), p.balanced().left @ (p.balanced().right @ inputs)
    assert p.balanced().dtype == torch.float32
    assert (before - after).abs().max().item() < 1e-5 * before.abs().max().item()


@settings(max_examples=40)
@given(widths=widths, rank=st.integers(1, 7), seed=seeds)
def test_truncation_is_the_best_approximation(widths: list[int], rank: int, seed: int) -> None:
    p = gaussian(widths, seed, batch=(2,))
    rank = min(rank, p.max_rank)
    kept = p.truncated(rank=rank)
    values = torch.linalg.svdvals(p.dense())
    off = torch.linalg.matrix_norm(p.dense() - kept.dense())
    expected = values[..., rank:].square().sum(-1).sqrt()
    torch.testing.assert_close(off, expected, rtol=1e-9, atol=1e-11 * float(values.max()))
    assert kept.widths == (widths[0], rank, widths[-1])
    assert (balance(kept).relative < 1e-20).all()


def test_energy_keeps_the_least_rank_for_each_matrix() -> None:
    flat, steep = with_values([1, 1, 1, 1], 6, 5, 0), with_values([10, 1, 0.1, 0], 6, 5, 1)
    p = Product(torch.stack([flat.left, steep.left]), torch.stack([flat.right, steep.right]))
    kept = p.truncated(energy=0.7)
    assert kept.widths == (6, 3, 5)
    assert torch.linalg.matrix_rank(kept.dense()).tolist() == [3, 1]
    assert (kept.left[1, :, 1:] == 0).all()
    whole = p.truncated(energy=1.0)
    torch.testing.assert_close(whole.dense(), p.dense(), rtol=0, atol=1e-5)


def test_truncation_of_zero_and_of_bad_matrices() -> None:
    zero = Product(torch.zeros(4, 2), torch.zeros(2, 3)).truncated(energy=0.9)
    assert zero.widths == (4, 1, 3)
    assert (zero.dense() == 0).all()
    p = gaussian((4, 2, 3), 0, batch=(2,))
    broken = p.left.clone()
    broken[0, 0, 0] = torch.nan
    for kept in (Product(broken, p.right).truncated(rank=1), Product(broken, p.right).truncated(energy=0.9)):
        assert kept.dense()[0].isnan().all()
        assert kept.dense()[1].isfinite().all()


def test_truncation_says_what_it_needs() -> None:
    p = gaussian((4, 2, 3), 0)
    for arguments in ({}, {"rank": 1, "energy": 0.5}):
        with pytest.raises(UserError, match="one of rank= and energy="):
            p.truncated(**arguments)
    with pytest.raises(UserError, match="at least 1"):
        p.truncated(rank=0)
    for energy in (0.0, 1.5, -1.0):
        with pytest.raises(UserError, match="above 0 and at most 1"):
            p.truncated(energy=energy)
    with pytest.warns(UserWarning, match="no effect"):
        assert p.truncated(rank=9).widths == (4, 2, 3)


@settings(max_examples=40)
@given(widths=st.lists(st.integers(1, 6), min_size=3, max_size=5), place=st.integers(0, 3), seed=seeds)
def test_a_gauge_move_changes_the_factors_and_not_the_product(widths: list[int], place: int, seed: int) -> None:
    p = gaussian(widths, seed, batch=(2,))
    at = min(place, p.depth - 2)
    width = widths[at + 1]
    move = frame(width, width, seed) @ torch.diag(torch.logspace(-2, 2, width, dtype=torch.float64))
    moved = transform(p, move, at=at)
    scale = float(torch.linalg.matrix_norm(p.dense()).max())
    torch.testing.assert_close(moved.dense(), p.dense(), rtol=0, atol=1e-10 * max(scale, 1.0))
    torch.testing.assert_close(moved.factors[at], p.factors[at] @ move)


def test_gauge_moves_that_cannot_be() -> None:
    p = gaussian((4, 2, 3), 0)
    with pytest.raises(UserError, match="2x2"):
        transform(p, torch.eye(3))
    with pytest.raises(UserError, match="none at 1"):
        transform(p, torch.eye(2), at=1)
    with pytest.raises(UserError, match="singular"):
        transform(p, torch.zeros(2, 2))


@settings(max_examples=30)
@given(m=st.integers(1, 6), r=st.integers(1, 4), n=st.integers(1, 6), seed=seeds)
def test_weights_are_symmetric_square_roots_of_the_covariances(m: int, r: int, n: int, seed: int) -> None:
    p = gaussian((m, r, n), seed)
    inputs, outputs = gaussian((3 * n, n), seed + 1).left, gaussian((m, m), seed + 2).left
    left, right = outputs @ outputs.mT, inputs.mT @ inputs
    seen = p.weighted(left, right)
    # Singular values with any other root F, C = F F^T, are the same.
    expected = torch.linalg.svdvals(outputs.mT @ p.dense() @ inputs.mT)[: min(m, r, n)]
    found = torch.linalg.svdvals(seen.dense())[: min(m, r, n)]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6 * float(expected.max()))
    # The root is the symmetric one: the energy in the rows is that of the covariance itself.
    once = p.weighted(left=left)
    twice = once.weighted(left=left)
    torch.testing.assert_close(twice.dense(), left @ p.dense(), rtol=1e-6, atol=1e-6 * float(left.abs().max()))


def test_weights_reach_single_matrices_and_shared_batches() -> None:
    single = gaussian((3, 4), 0)
    seen = single.weighted(torch.eye(3) * 4, torch.eye(4) * 9)
    torch.testing.assert_close(seen.dense(), 6 * single.dense())
    stack = gaussian((3, 2, 4), 0, batch=(5,)).weighted(right=torch.eye(4))
    assert stack.batch_shape == (5,)


def test_what_is_no_covariance_is_refused() -> None:
    p = gaussian((3, 2, 4), 0)
    for covariance, word in [
        (torch.eye(4), "3x3"),
        (-torch.eye(3), "negative eigenvalue"),
        (torch.eye(3) + torch.ones(3, 3).triu(1), "not symmetric"),
        (torch.full((3, 3), torch.nan), "NaN or Inf"),
    ]:
        with pytest.raises(UserError, match=word) as caught:
            p.weighted(left=covariance)
        assert "\n" not in str(caught.value)
    with pytest.warns(UserWarning, match="no effect"):
        assert p.weighted() is p
    # Rounding of an accumulated covariance is forgiven.
    data = gaussian((2, 3), 1).left.float()
    assert p.weighted(left=data.mT @ data - 1e-7 * torch.eye(3)).dense().isfinite().all()


def test_moves_of_sums_stay_sums_and_balanced_ones_do_not() -> None:
    p = gaussian((4, 2, 3), 0)
    total = p + p
    assert transform(total, torch.eye(4)).is_sum
    assert total.weighted(right=torch.eye(3)).is_sum
    assert not total.balanced().is_sum
    assert balance(total.balanced()).relative.item() < 1e-12
