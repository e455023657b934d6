"""Where decay ends: thresholds, ridges, Schatten quasi-norms, unequal decays, groups, rotary pairs, biases."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import UserError
from rankwise.product.pairs import RotaryPairs
from rankwise.theory import (
    Convention,
    MatrixLoss,
    Penalty,
    RotaryHead,
    biased_balance,
    equilibria,
    grouped_equilibrium,
    grouped_flow,
    live_values,
    one_sided_decay,
    random_factors,
    ridge,
    rotary_equilibrium,
    rotary_flow,
    schatten_shrinkage,
    soft_threshold,
    unequal_decay,
    unequal_rates,
    vanishing_point,
    whitened_network,
)

SPECTRUM = torch.diag(torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0], dtype=torch.float64))
RAMP = torch.linspace(3, 0.1, 20, dtype=torch.float64)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_figure_1_with_and_without_the_half_that_it_does_not_print() -> None:
    halved = equilibria(SPECTRUM, decay=[0.0, 0.3, 0.9], start=0.5)
    assert halved.values.error < 1e-4
    assert halved.values.simulated[1].tolist() == pytest.approx([0.7, 0.5, 0.3, 0.1, 0.0], abs=1e-4)
    whole = equilibria(SPECTRUM, decay=[0.3, 1.1], scale=1.0, start=0.5)
    assert whole.values.simulated[0].tolist() == pytest.approx([0.85, 0.65, 0.45, 0.25, 0.05], abs=1e-4)
    # The paper says that a value vanishes at lam >= s; without the half, 0.6 survives lam = 1.1 and dies at 1.2.
    assert whole.values.simulated[1].tolist() == pytest.approx([0.45, 0.25, 0.05, 0.0, 0.0], abs=1e-4)


def test_conventions_differ_by_two() -> None:
    whole = equilibria(SPECTRUM, decay=0.15, convention=Convention.WHOLE)
    halved = equilibria(SPECTRUM, decay=0.3)
    assert torch.allclose(whole.values.simulated, halved.values.simulated, atol=1e-8)


def test_the_gap_closes_with_decay_and_stays_without() -> None:
    charged, free = (equilibria(SPECTRUM, decay=one, start=0.5).factors for one in (0.1, 0.0))
    gaps = [
        float((a.square().sum() + r.square().sum()) / 2 - torch.linalg.svdvals(a @ r).sum()) for a, r in (charged, free)
    ]
    assert gaps[0] < 1e-8 < 0.3 < gaps[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factors", "penalty", "top", "rank"),
    [
        (2, Penalty.FACTORS, 2.0, 14),
        (2, Penalty.PRODUCT, 1.5, 20),
        (1, Penalty.FACTORS, 1.5, 20),
        (2, Penalty.NONE, 3.0, 20),
    ],
)
def test_twenty_values_under_every_penalty(factors, penalty, top, rank) -> None:
    found = equilibria(torch.diag(RAMP), decay=1.0, factors=factors, penalty=penalty)
    assert found.values.error < 1e-6
    assert found.values.simulated[0, 0].item() == pytest.approx(top, abs=1e-6)
    assert found.ranks.predicted.item() == found.ranks.simulated.item() == rank
    assert found.mean_square.relative_error < 1e-9


@pytest.mark.slow
def test_frobenius_decay_of_three_factors_is_a_ridge_as_well() -> None:
    found = equilibria(SPECTRUM[1:, 1:], decay=1.0, factors=3, penalty=Penalty.PRODUCT)
    assert found.values.error < 1e-6
    assert found.values.simulated[0].tolist() == pytest.approx([0.5, 0.4, 0.3, 0.2], abs=1e-6)


@pytest.mark.slow
def test_three_factors_press_harder_on_the_rank_and_less_on_what_stays() -> None:
    found = equilibria(torch.diag(RAMP), decay=1.0, factors=3)
    assert found.values.error < 1e-6
    assert found.values.simulated[0, 0].item() == pytest.approx(2.235, abs=5e-4)
    assert int((found.best > 0).sum()) == 7 <= found.ranks.simulated.item() <= 9
    assert found.mean_square.relative_error < 1e-9


def test_single_matrices_and_frobenius_decay_keep_the_rank() -> None:
    for factors, penalty in ((1, Penalty.FACTORS), (2, Penalty.PRODUCT)):
        found = equilibria(SPECTRUM, decay=0.5, factors=factors, penalty=penalty)
        assert found.values.error < 1e-8
        assert found.ranks.simulated.item() == 5
        thresholded = soft_threshold(torch.linalg.svdvals(SPECTRUM), 0.5)
        assert float((found.values.simulated[0] - thresholded).abs().max()) > 0.1


@given(st.floats(0.01, 3.0), st.integers(1, 6), st.floats(0.0, 5.0))
@settings(max_examples=60, deadline=None)
def test_shrinkage_minimizes_what_it_says(lam, factors, s) -> None:
    found = float(schatten_shrinkage(torch.tensor([s]).double(), lam, factors=factors))
    grid = torch.linspace(0, 6, 60_001, dtype=torch.float64)
    cost = (grid - s).square() / 2 + lam * factors / 2 * grid ** (2 / factors)
    own = (found - s) ** 2 / 2 + lam * factors / 2 * found ** (2 / factors)
    assert own <= float(cost.min()) + 1e-9


def test_live_points_exist_from_the_vanishing_point_on() -> None:
    for factors in (3, 4, 7):
        least = vanishing_point(0.8, factors=factors)
        below, above = live_values(least * torch.tensor([0.999, 1.001], dtype=torch.float64), 0.8, factors=factors)
        assert below == 0 < above
        assert float(above - least * 1.001 + 0.8 * above ** (2 / factors - 1)) == pytest.approx(0.0, abs=1e-12)
    assert torch.equal(ridge(RAMP, 1.0), RAMP / 2)


def test_a_whitened_network_and_a_single_matrix() -> None:
    found = whitened_network(torch.tensor([1.0, 0.7, 0.45, 0.2]), decay=0.3, width=6)
    for both in (found.values, found.rows, found.orthogonality, found.shared, found.single):
        assert both.error < 1e-6
    assert found.ranks == (3, 4)
    assert found.escape.relative_error < 1e-6


def test_unequal_decays_act_by_their_geometric_mean() -> None:
    found = unequal_decay(SPECTRUM[1:, 1:], left_decay=0.1, right_decay=0.4, until=120.0)
    assert found.threshold == pytest.approx(0.2, rel=1e-15)
    assert max(found.values.error, found.balance.error) < 1e-6


def test_decay_on_one_factor_loses_its_pressure_and_lets_the_other_grow() -> None:
    found = one_sided_decay(torch.tensor([1.0, 0.6]), decay=0.2, times=torch.tensor([20.0, 220.0, 2220.0]))
    assert found.values.simulated[:, 0].tolist() == pytest.approx([0.951, 0.985, 0.995], abs=2e-3)
    assert found.free.relative_error < 1e-3
    assert found.values.error < 2e-3
    late = found.values.predicted[-1] - found.values.simulated[-1]
    assert float(late.abs().max()) < 1e-5
    assert bool((found.free.simulated.diff(dim=0) > 0).all())


def test_unequal_rates_have_a_law_only_where_rate_times_decay_agree() -> None:
    loss, factors = MatrixLoss.rugged((4, 3), seed=0, waves=5), random_factors((4, 3), rank=2, scale=0.8, seed=0)
    closed = unequal_rates(loss, *factors, rates=(0.5, 2.0), decays=(0.4, 0.1), until=2.0, points=9)
    assert closed.closed
    assert closed.imbalance.relative_error < 1e-8
    open_ = unequal_rates(loss, *factors, rates=(0.5, 2.0), decays=(0.2, 0.2), until=2.0, points=9)
    assert not open_.closed
    assert open_.imbalance.relative_error > 0.01


def test_heads_that_share_a_factor_are_balanced_as_a_group() -> None:
    losses = [MatrixLoss.rugged((3, 4), seed=seed, waves=5) for seed in range(2)]
    law = grouped_flow(losses, normal(2, 3, 2, seed=1) / 2, normal(2, 4, seed=2), decay=0.2, until=2.0, points=9)
    assert law.imbalance.relative_error < 1e-8
    assert law.single.relative_error > 0.1
    found = grouped_equilibrium(normal(3, 4, 4, seed=3), decay=0.6, rank=4)
    assert found.values.error < 1e-6
    assert found.penalty.error < 1e-6
    assert found.single_grams.error > 0.5
    assert found.heads_alone > 1.2 * found.penalty.predicted.item()


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotary_heads_obey_the_law_of_each_frequency_alone(layout) -> None:
    head = RotaryHead(normal(7, 4, seed=0), targets=normal(7, 7, seed=1), pairs=RotaryPairs(layout))
    law = rotary_flow(head, 0.8 * normal(4, 4, seed=2), 0.8 * normal(4, 4, seed=3), decay=0.15, until=1.0, points=6)
    assert law.pairs.relative_error < 1e-8
    assert law.whole.relative_error > 0.1
    assert law.unrotated.predicted.numel() == 0


def test_partial_rotation_leaves_the_full_law_to_what_does_not_turn() -> None:
    pairs = RotaryPairs("half", rotated=2)
    head = RotaryHead(normal(6, 4, seed=0), targets=normal(6, 6, seed=1), pairs=pairs)
    law = rotary_flow(head, 0.8 * normal(4, 5, seed=2), 0.8 * normal(5, 4, seed=3), decay=0.15, until=1.0, points=6)
    assert law.pairs.relative_error < 1e-8
    assert law.unrotated.relative_error < 1e-8
    assert law.unrotated.predicted.shape[-2:] == (3, 3)
    assert law.whole.relative_error > 0.1


def test_rotary_decay_is_the_pair_sum_and_not_the_nuclear_norm() -> None:
    head = RotaryHead(normal(12, 6, seed=0), targets=3 * normal(12, 12, seed=1), pairs=RotaryPairs("half"))
    found = rotary_equilibrium(head, normal(6, 6, seed=2), normal(6, 6, seed=3), decay=0.02)
    assert found.residual < 1e-10
    assert found.penalty.relative_error < 1e-8
    assert found.nuclear < 0.95 * found.penalty.predicted.item()


def test_undecayed_biases_leave_the_weights_balanced() -> None:
    factors = random_factors((4, 4), rank=2, scale=0.8, seed=0)
    loss = MatrixLoss.rugged((4, 4), seed=3, waves=5)
    free = biased_balance(loss, *factors, decay=0.2, bias_decay=0.0, until=1.5, points=7)
    assert free.imbalance.relative_error < 1e-8
    assert float(free.weights.abs().max()) < 1e-10 < 1e-2 < float(free.biases.abs().max())
    charged = biased_balance(loss, *factors, decay=0.2, bias_decay=0.1, until=1.5, points=7)
    assert charged.imbalance.relative_error < 1e-8
    assert charged.stationary.error < 1e-10 < 1e-4 < float(charged.weights.abs().max())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: equilibria(torch.ones(2), decay=0.1), r"the target has shape \(2,\)"),
        (lambda: equilibria(SPECTRUM, decay=[]), "0 decays, 2 factors"),
        (lambda: unequal_decay(SPECTRUM, left_decay=0.1, right_decay=0.0), "see one_sided_decay"),
        (lambda: one_sided_decay(torch.ones(1), decay=0.1, times=torch.tensor([5.0])), "give two or more"),
        (lambda: whitened_network(torch.tensor([1.0, 0.3]), decay=0.3), "at the threshold 0.3"),
        (lambda: grouped_flow([], torch.ones(2, 3, 2), torch.ones(2, 4), decay=0.1, until=1.0), "0 losses were given"),
        (lambda: RotaryHead(torch.ones(3, 2), targets=torch.ones(2, 2), pairs=RotaryPairs("half")), "for 3 tokens"),
        (lambda: vanishing_point(1.0, factors=1), "values vanish for 2 and more"),
        (lambda: equilibria(SPECTRUM, decay=math.nan), "a decay of nan was given"),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
