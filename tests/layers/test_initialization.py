"""Where factors start: the best approximation, balanced, alive beyond full rank, or each drawn for itself."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rankwise import Product, Spectral, balance
from rankwise.errors import UserError
from rankwise.layers.initialization import check_rank, checked_init, factor_shapes, initial_factors, spectral_factors
from tests.layers.draws import matrix, with_values


def multiplied(factors):
    return Product(*factors).dense()


@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    rank=st.integers(1, 9),
    inner=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_the_product_is_the_best_approximation_and_its_factors_are_balanced(rows, columns, rank, inner, seed):
    dense = matrix(rows, columns, seed=seed)
    rank = min(rank, rows, columns)
    factors = spectral_factors(dense, rank, inner=inner)
    assert [tuple(factor.shape) for factor in factors] == factor_shapes(rows, columns, rank, inner)
    values = torch.linalg.svdvals(dense)
    missed = torch.linalg.matrix_norm(dense - multiplied(factors))
    torch.testing.assert_close(missed, values[rank:].square().sum().sqrt(), atol=1e-12, rtol=1e-10)
    for one, two in pairwise(factors):
        torch.testing.assert_close(one.mT @ one, two @ two.mT, atol=1e-12, rtol=1e-10)
    shared = torch.linalg.svdvals(factors[0])
    torch.testing.assert_close(shared, values[:rank] ** (1 / len(factors)), atol=1e-7, rtol=1e-7)


def test_no_other_matrix_of_the_rank_is_nearer():
    dense = matrix(12, 9)
    best = torch.linalg.matrix_norm(dense - multiplied(spectral_factors(dense, 3)))
    left, right = spectral_factors(dense, 3)
    for seed in range(50):
        moved = (left + 0.05 * matrix(12, 3, seed=seed)) @ (right + 0.05 * matrix(3, 9, seed=seed + 50))
        assert torch.linalg.matrix_norm(dense - moved) > best


def test_the_top_singular_values_are_kept_and_each_end_holds_the_nuclear_norm():
    dense = with_values(torch.tensor([9.0, 4.0, 1.0, 0.5]), 20, 15)
    left, right = spectral_factors(dense, 2)
    torch.testing.assert_close(torch.linalg.svdvals(left @ right)[:2], torch.tensor([9.0, 4.0], dtype=torch.float64))
    for factor in (left, right):
        assert factor.square().sum().item() == pytest.approx(13.0)


def test_with_ends_the_inner_factors_are_identities():
    dense = matrix(6, 5)
    left, middle, right = spectral_factors(dense, 3, inner=1, settings=Spectral(spread="ends"))
    assert torch.equal(middle, torch.eye(3, dtype=torch.float64))
    for two, three in zip(spectral_factors(dense, 3), (left, right), strict=True):
        torch.testing.assert_close(two, three)


def test_noise_goes_to_the_inner_factors_alone():
    dense = matrix(60, 50)
    quiet = spectral_factors(dense, 40, inner=1, settings=Spectral(spread="ends"))
    noisy = spectral_factors(dense, 40, inner=1, settings=Spectral(spread="ends", noise=0.1))
    assert torch.equal(quiet[0], noisy[0])
    assert torch.equal(quiet[2], noisy[2])
    assert (noisy[1] - torch.eye(40)).std().item() == pytest.approx(0.1, rel=0.1)


def test_ones_keeps_the_directions_and_forgets_the_values():
    dense = with_values(torch.tensor([9.0, 4.0, 1.0]), 8, 6)
    left, right = spectral_factors(dense, 2, settings=Spectral(values="ones"))
    product = left @ right
    torch.testing.assert_close(torch.linalg.svdvals(product)[:3], torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64))
    kept = multiplied(spectral_factors(dense, 2))
    torch.testing.assert_close(product @ kept.mT @ product, kept)


@pytest.mark.parametrize("inner", [0, 1, 2])
@pytest.mark.parametrize("spread", ["even", "ends"])
@pytest.mark.parametrize(("rows", "columns", "rank"), [(7, 5, 6), (7, 5, 15), (5, 7, 8), (6, 6, 18), (1, 4, 3)])
def test_beyond_full_rank_the_product_is_the_weight_itself(rows, columns, rank, inner, spread):
    dense = matrix(rows, columns)
    factors = spectral_factors(dense, rank, inner=inner, settings=Spectral(spread=spread))
    assert [tuple(factor.shape) for factor in factors] == factor_shapes(rows, columns, rank, inner)
    torch.testing.assert_close(multiplied(factors), dense)


@pytest.mark.parametrize("fill", [0.1, 0.5])
@pytest.mark.parametrize("rank", [10, 24, 80])
def test_the_imbalance_beyond_full_rank_is_known(fill, rank):
    factors = spectral_factors(matrix(12, 8), rank, settings=Spectral(fill=fill))
    certificate = balance(Product(*factors))
    assert certificate.relative.item() == pytest.approx(fill / (1 + fill), abs=certificate.error.item() + 1e-9)


def test_without_fill_the_columns_beyond_full_rank_are_zero():
    left, right = spectral_factors(matrix(6, 4), 9, settings=Spectral(fill=0.0))
    assert torch.equal(left[:, 4:], torch.zeros(6, 5, dtype=torch.float64))
    assert torch.equal(right[4:], torch.zeros(5, 4, dtype=torch.float64))


def test_a_regular_start_draws_every_factor_for_itself():
    dense = matrix(400, 300)
    left, right = initial_factors(dense, 50, inner=0, init=nn.init.kaiming_normal_)
    assert left.std().item() == pytest.approx((2 / 50) ** 0.5, rel=0.05)
    assert right.std().item() == pytest.approx((2 / 300) ** 0.5, rel=0.05)


def test_where_factors_are_drawn_as_the_dense_weight_the_product_is_smaller_instead():
    """VGG and wide ResNets: two thirds of the share. Spectral and regular starts then differ the other way round."""
    torch.manual_seed(0)
    spread = (2 / (9 * 64)) ** 0.5
    dense = torch.randn(192, 192) * spread
    for share in (0.111, 0.333):
        draw = partial(nn.init.normal_, std=spread)
        regular = multiplied(initial_factors(dense, round(192 * share), inner=0, init=draw))
        kept = multiplied(initial_factors(dense, round(192 * share), inner=0, init=Spectral()))
        assert (regular.square().sum() / dense.square().sum()).item() == pytest.approx(2 * share / 3, rel=0.1)
        assert regular.norm() < kept.norm()


def test_factors_are_in_the_type_of_the_weight():
    assert {factor.dtype for factor in spectral_factors(matrix(6, 4).bfloat16(), 2)} == {torch.bfloat16}


def test_on_the_meta_device_factors_have_shapes_alone():
    factors = spectral_factors(torch.empty(6, 4, device="meta"), 2, inner=1)
    assert [tuple(factor.shape) for factor in factors] == [(6, 2), (2, 2), (2, 4)]
    assert all(factor.is_meta for factor in factors)


def test_a_weight_that_is_not_finite_has_no_spectral_start():
    dense = matrix(6, 4)
    dense[2, 3] = torch.nan
    with pytest.raises(UserError, match=r"a weight of shape \(6, 4\) has no spectral start: a factor holds NaN or Inf"):
        spectral_factors(dense, 2)


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        (0, "rank must be at least 1, got 0"),
        (-3, "rank must be at least 1, got -3"),
        (2.5, "rank must be a whole number, got 2.5"),
        (True, "rank must be a whole number, got True"),
        (5, "rank 5 is above 4, the largest rank of a 6x4 matrix: give overcomplete=True"),
    ],
)
def test_ranks_that_cannot_be_are_refused(rank, message):
    with pytest.raises(UserError, match=message):
        check_rank(rank, (6, 4), overcomplete=False)
    check_rank(5, (6, 4), overcomplete=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: checked_init("random"), "init must be 'spectral', 'ones', rankwise.Spectral"),
        (lambda: Spectral(values="two"), "values='kept' or 'ones', got 'two'"),
        (lambda: Spectral(spread="odd"), "spread='even' or 'ends', got 'odd'"),
        (lambda: Spectral(fill=-1.0), "at least 0, got 0.0 and -1.0"),
        (lambda: Spectral(noise=float("nan")), "at least 0, got nan"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_short_names_stand_for_records():
    assert checked_init("spectral") == Spectral()
    assert checked_init("ones") == Spectral(values="ones")
    drawn = partial(nn.init.normal_, std=0.1)
    assert checked_init(drawn) is drawn
