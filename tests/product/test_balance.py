"""The gap without cancellation, its two-sided bound, and the laws that decay obeys."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.balance import balance
from rankwise.product.bures import bures
from rankwise.product.null import null_model
from rankwise.product.product import Product
from tests.product.draws import gaussian

sizes = st.integers(1, 8)
seeds = st.integers(0, 2**31)


def nuclear(matrix: Tensor) -> Tensor:
    return torch.linalg.svdvals(matrix).sum(-1)


@settings(max_examples=60)
@given(m=sizes, r=sizes, n=sizes, scale=st.floats(-3, 3), seed=seeds)
def test_gap_is_half_sum_minus_nuclear_norm_and_half_a_squared_bures_distance(
    m: int, r: int, n: int, scale: float, seed: int
) -> None:
    p = gaussian((m, r, n), seed)
    p = Product(p.left * 10**scale, p.right)
    report = balance(p)
    half_sum = (p.left.square().sum() + p.right.square().sum()) / 2
    assert report.half_sum.item() == pytest.approx(half_sum.item(), rel=1e-13)
    assert report.nuclear.item() == pytest.approx(nuclear(p.dense()).item(), rel=1e-12)
    assert report.gap.item() == pytest.approx((half_sum - nuclear(p.dense())).item(), abs=1e-13 * half_sum.item())
    # The second form, from the square roots of the r x r Grams, which nothing in the implementation uses.
    one, two = p.left.mT @ p.left, p.right @ p.right.mT
    values, vectors = torch.linalg.eigh(one)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.mT
    cross = torch.linalg.eigvalsh(root @ two @ root).clamp_min(0).sqrt().sum()
    bures = (one.trace() + two.trace() - 2 * cross) / 2
    assert report.gap.item() == pytest.approx(bures.item(), abs=1e-6 * half_sum.item())


@settings(max_examples=80)
@given(m=sizes, r=sizes, n=sizes, rank=sizes, seed=seeds)
def test_two_sided_bound_and_the_looser_one_of_the_paper(m: int, r: int, n: int, rank: int, seed: int) -> None:
    low = gaussian((m, min(rank, r), r), seed)
    p = Product(low.dense(), gaussian((r, n), seed + 1).left)
    report = balance(p)
    distance = nuclear(report.imbalance).item()
    total = 2 * report.half_sum.item()
    gap = report.gap.item()
    slack = 1 + 1e-9
    sharper = distance**2 / (4 * (total - gap))
    assert distance**2 / (4 * total) <= sharper * slack
    assert sharper <= gap * slack + 1e-12 * total
    assert gap <= distance / 2 * slack
    loose = distance**0.5 * (nuclear(p.left) + nuclear(p.right)).item() / 2
    assert gap <= loose * slack


def test_each_matrix_takes_the_cheapest_way_that_holds_its_gap() -> None:
    uneven, even = gaussian((9, 4, 8), 0), gaussian((9, 4, 8), 1).balanced()
    nearly = Product(even.left * (1 + 1e-9), even.right)
    p = Product(*(torch.stack(factors) for factors in zip(uneven.factors, nearly.factors, even.factors, strict=True)))
    report = balance(p)
    assert report.method == ("gram64", "bures", "bures")
    assert balance(uneven).method == "gram64"
    exact = bures(*p.factors)
    assert ((report.gap - exact.gap).abs() <= report.error + exact.error).all()
    assert ((report.nuclear - exact.nuclear).abs() <= report.nuclear_error + exact.nuclear_error).all()
    torch.testing.assert_close(report.imbalance, exact.imbalance, rtol=0, atol=1e-13)
    assert report.error[0].item() <= 1e-6 * report.gap[0].item()
    assert report.gap[1].item() == pytest.approx(1e-18 * report.nuclear[1].item() / 2, rel=1e-5)
    assert report.gap[2].item() < 1e-27


def test_relative_imbalance_and_gap_of_random_factors_are_near_their_null() -> None:
    p = gaussian((256, 16, 256), 0, batch=(50,))
    report = balance(p)
    assert report.relative.mean().item() == pytest.approx(report.null.mean, rel=0.05)
    assert report.relative_imbalance.mean().item() == pytest.approx(report.null_imbalance.mean, rel=0.05)
    assert report.null == null_model((256, 16, 256)).relative_gap()


def test_known_balances() -> None:
    scalar = balance(Product(torch.tensor([[3.0]]), torch.tensor([[-1.0]])))
    assert (scalar.gap.item(), scalar.half_sum.item(), scalar.nuclear.item()) == pytest.approx((2.0, 5.0, 3.0))
    assert scalar.imbalance.item() == pytest.approx(8.0)
    assert scalar.relative.item() == pytest.approx(0.4)
    one_sided = balance(Product(torch.eye(3), torch.zeros(3, 4)))
    assert one_sided.gap.item() == pytest.approx(one_sided.half_sum.item()) == 1.5
    nothing = balance(Product(torch.zeros(3, 2), torch.zeros(2, 4)))
    assert nothing.gap.item() == nothing.relative.item() == nothing.relative_imbalance.item() == 0.0


def test_tied_factors_are_balanced() -> None:
    factor = gaussian((9, 4), 5).left
    report = balance(Product(factor, factor.mT))
    assert report.relative.item() < 1e-28
    assert report.imbalance_norm.item() < 1e-13 * report.half_sum.item()


def test_batches_broadcast_and_one_bad_matrix_does_not_cost_the_others() -> None:
    left = gaussian((7, 3), 0, batch=(4,)).left.clone()
    right = gaussian((3, 6), 1, batch=(2, 1)).left
    left[2, 1, 1] = torch.nan
    report = balance(Product(left, right))
    assert report.gap.shape == (2, 4)
    assert report.imbalance.shape == (2, 4, 3, 3)
    assert set(report.failures) == {2, 6}
    assert report.gap[:, 2].isnan().all()
    assert report.error[:, 2].isinf().all()
    alone = balance(Product(left[3], right[1, 0]))
    assert report.gap[1, 3].item() == pytest.approx(alone.gap.item(), rel=1e-12)


def test_half_precision_factors_are_read_exactly() -> None:
    p = gaussian((12, 4, 10), 3, dtype=torch.bfloat16)
    assert balance(p).gap.item() == pytest.approx(balance(p.to(torch.float64)).gap.item(), rel=1e-12)


def test_what_has_no_balance_is_refused_in_one_line() -> None:
    p = gaussian((5, 2, 4), 0)
    for wrong, word in [
        (p + p, "sum or a change"),
        (p - p * 0.5, "sum or a change"),
        ((p - p * 0.5).T * 2.0, "sum or a change"),
        (Product(p.left), "single matrix"),
        (gaussian((5, 3, 2, 4), 0), "chain_balance"),
    ]:
        with pytest.raises(UserError, match=word) as caught:
            balance(wrong)
        assert "\n" not in str(caught.value)


# --- the laws of decay -------------------------------------------------------------------------------------------


def loss_gradient(matrix: Tensor, target: Tensor) -> Tensor:
    """The gradient of a loss that is neither convex nor quadratic in the product."""
    return (matrix - target) + 0.3 * torch.sin(2 * matrix)


def test_one_step_of_descent_changes_the_imbalance_by_its_exact_law() -> None:
    p = gaussian((7, 3, 6), 0)
    target = gaussian((7, 6), 1).left
    rate, decay = 0.05, 0.3
    gradient = loss_gradient(p.dense(), target)
    step = Product(
        (1 - rate * decay) * p.left - rate * gradient @ p.right.mT,
        (1 - rate * decay) * p.right - rate * p.left.mT @ gradient,
    )
    before, after = balance(p).imbalance, balance(step).imbalance
    drift = p.right @ gradient.mT @ gradient @ p.right.mT - p.left.mT @ gradient @ gradient.mT @ p.left
    expected = (1 - rate * decay) ** 2 * before + rate**2 * drift
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-12)


def test_descent_ends_balanced_with_soft_thresholded_values() -> None:
    target = torch.diag(torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0], dtype=torch.float64))
    left, right = (0.5 * factor for factor in gaussian((5, 5, 5), 1).factors)
    rate, decay = 0.1, 0.3
    for _ in range(3000):
        gradient = left @ right - target
        left, right = (
            left - rate * (gradient @ right.mT + decay * left),
            right - rate * (left.mT @ gradient + decay * right),
        )
    report = balance(Product(left, right))
    values = torch.linalg.svdvals(left @ right)
    torch.testing.assert_close(values, torch.tensor([0.7, 0.5, 0.3, 0.1, 0.0], dtype=torch.float64), rtol=0, atol=1e-6)
    assert report.gap.item() < 1e-12
    assert report.nuclear.item() == pytest.approx(1.6, abs=1e-6)


def test_decay_of_one_factor_only_drifts_apart_while_the_values_come_back() -> None:
    target = torch.eye(1, dtype=torch.float64)
    left, right = torch.full((1, 1), 0.9, dtype=torch.float64), torch.full((1, 1), 0.9, dtype=torch.float64)
    rate, decay = 0.01, 0.2
    seen = {}
    for step in range(1, 22_001):
        gradient = left @ right - target
        left, right = left - rate * (gradient @ right + decay * left), right - rate * left @ gradient
        if step in (2_000, 22_000):
            seen[step] = (left @ right).item(), left.item(), right.item()
    assert seen[22_000][0] > seen[2_000][0] > 0.9
    assert seen[22_000][1] < seen[2_000][1]
    assert seen[22_000][2] > seen[2_000][2]
    report = balance(Product(left, right))
    assert report.imbalance.item() < -1.0


@pytest.mark.parametrize("group", [1, -1])
def test_heads_that_share_keys_balance_as_a_group_and_not_one_by_one(group: int) -> None:
    """Two groups of three heads under descent: the law holds for the concatenation alone."""
    heads = gaussian((6, 4, 7), 0, batch=(2, 3))
    queries, keys = 0.4 * heads.left, 0.4 * heads.right[:, :1]
    target = 2.0 * gaussian((6, 7), 2, batch=(2, 3)).left
    rate, decay = 0.02, 0.2
    start = balance(Product(queries, keys), group=group)
    for _ in range(4000):
        gradient = queries @ keys - target
        queries, keys = (
            queries - rate * (gradient @ keys.mT + decay * queries),
            keys - rate * ((queries.mT @ gradient).sum(1, keepdim=True) + decay * keys),
        )
    report = balance(Product(queries, keys), group=group)
    assert report.gap.shape == (2,)
    expected = keys[:, 0] @ keys[:, 0].mT - (queries.mT @ queries).sum(1)
    torch.testing.assert_close(report.imbalance, -expected, rtol=0, atol=1e-12)
    assert (report.imbalance_norm < 1e-6 * start.imbalance_norm).all()
    assert (report.relative < 1e-12).all()
    joined = (queries @ keys).flatten(1, 2)
    torch.testing.assert_close(report.nuclear, nuclear(joined), rtol=1e-11, atol=0)
    single = balance(Product(queries, keys))
    assert (single.imbalance_norm > 1.0).all()


def test_a_spectrum_that_is_known_is_not_computed_again():
    product = Product(torch.randn(3, 20, 4), torch.randn(3, 4, 15))
    once, again = balance(product), balance(product, spectrum=product.spectrum(method="qr"))
    torch.testing.assert_close(again.gap, once.gap, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(again.nuclear, product.spectrum().values.sum(-1), rtol=1e-12, atol=0)
    other = Product(product.left, product.right / 2).spectrum()
    torch.testing.assert_close(balance(product, spectrum=other).nuclear, once.nuclear / 2)
