"""The imbalance of decayed factors under flow, descent, noise, momentum and any update, against its exact laws."""

from __future__ import annotations

import math

import pytest
import torch

from rankwise.errors import UserError
from rankwise.theory import (
    Convention,
    MatrixLoss,
    Penalty,
    balance_after,
    balance_descent,
    balance_flow,
    balance_momentum,
    balance_under_noise,
    gap_rates,
    half_life,
    random_factors,
    shrink_factor,
)

SPECTRUM = torch.diag(torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0], dtype=torch.float64))


def wide(seed: int = 0) -> tuple[MatrixLoss, torch.Tensor, torch.Tensor]:
    """A loss with many minima of a rectangular product, and unbalanced factors."""
    left, right = random_factors((4, 3), rank=2, scale=0.7, seed=seed)
    return MatrixLoss.rugged((4, 3), seed=seed, waves=5), 1.5 * left, right


@pytest.mark.parametrize("convention", Convention)
@pytest.mark.parametrize("seed", [0, 1])
def test_flow_on_a_nonconvex_loss_damps_the_imbalance_exactly(convention, seed) -> None:
    law = balance_flow(*wide(seed), decay=0.3, until=2.0, convention=convention, points=11)
    assert law.imbalance.relative_error < 1e-8
    ratio = float(law.imbalance.simulated[-1].norm() / law.imbalance.simulated[0].norm())
    assert ratio == pytest.approx(math.exp(-2 * law.pressure * 2.0), rel=1e-6)
    assert bool((law.gap <= law.upper * (1 + 1e-8)).all())
    assert bool((law.gap >= law.lower * (1 - 1e-6)).all())
    assert bool((law.upper <= law.paper * (1 + 1e-8)).all())


def test_without_decay_and_under_frobenius_decay_the_imbalance_stays_and_so_does_the_gap() -> None:
    for penalty, decay in ((Penalty.NONE, 0.0), (Penalty.PRODUCT, 0.4)):
        law = balance_flow(*wide(), decay=decay, until=2.0, penalty=penalty, points=5)
        assert law.imbalance.relative_error < 1e-8
        assert float(law.imbalance.simulated[-1].norm()) > 0.99 * float(law.imbalance.simulated[0].norm())
        assert float(law.gap[-1]) > 0.1


def test_the_law_of_the_factors_fails_for_frobenius_decay() -> None:
    frobenius = balance_flow(*wide(), decay=0.4, until=2.0, penalty=Penalty.PRODUCT, points=5)
    wrong = frobenius.imbalance.simulated[0] * math.exp(-2 * 0.4 * 2.0)
    assert float((frobenius.imbalance.simulated[-1] - wrong).norm()) > float(wrong.norm())


def test_half_lives() -> None:
    law = balance_flow(
        *wide(), decay=0.3, until=half_life(0.3, Convention.WHOLE), convention=Convention.WHOLE, points=2
    )
    first, last = law.imbalance.simulated.flatten(1).norm(dim=1)
    assert float(last / first) == pytest.approx(0.5, rel=1e-8)
    assert half_life(0.0) == math.inf


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("convention", Convention)
def test_descent_obeys_its_law_to_rounding_noise_included(noise, convention) -> None:
    loss, left, right = wide(3)
    law = balance_descent(loss, left, right, decay=0.2, rate=0.02, steps=300, noise=noise, convention=convention)
    assert law.imbalance.relative_error < 1e-14
    # Decay alone does not say it: the second-order term is more than rounding.
    kept = float(law.imbalance.simulated[-1].norm() / law.imbalance.simulated[0].norm())
    assert abs(kept / law.shrunk - 1) > 1e-3


@pytest.mark.parametrize("decay", [0.05, 0.1, 0.19])
def test_near_an_equilibrium_the_slope_is_that_of_one_over_two_steps(decay) -> None:
    loss = MatrixLoss.denoising(SPECTRUM)
    left, right = random_factors((5, 5), rank=5, scale=0.5, seed=1)
    rate = 0.02
    law = balance_descent(loss, left, right, decay=decay, rate=rate, steps=int(8 / (rate * decay)), every=10)
    assert law.late_slope.predicted.item() == pytest.approx(math.log(1 - 2 * rate * decay) / rate)
    assert law.late_slope.relative_error < 1e-3
    assert abs(law.late_slope.simulated.item() + 2 * decay) > 1e-4 * decay


def test_any_update_with_decoupled_decay() -> None:
    generator = torch.Generator().manual_seed(0)
    a, r, u, v = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((6, 3), (3, 4), (6, 3), (3, 4))
    )
    signs = balance_after(a, r, u.sign(), v.sign(), decay=0.1, rate=0.3)
    assert signs.imbalance.error < 1e-13
    # A gradient twists nothing at first order; Adam's signs do.
    gradient = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    plain = balance_after(a, r, gradient @ r.mT, a.mT @ gradient, decay=0.1, rate=0.3)
    assert float(plain.twist.abs().max()) < 1e-13 < 1.0 < float(signs.twist.abs().max())


def test_noise_balances_on_average_even_without_decay() -> None:
    left, right = random_factors((4, 4), rank=3, scale=1.0, seed=0)
    law = balance_under_noise(3 * left, right, decay=0.0, rate=0.05, noise=1.0, draws=4000)
    assert law.deviations < 5
    begun = 9 * left.mT @ left - right @ right.mT
    assert torch.allclose(law.imbalance.predicted, (1 - 4 * 0.05**2) * begun, rtol=1e-12)
    oblong = balance_under_noise(*random_factors((6, 3), rank=2, scale=1.0, seed=1), decay=0.3, rate=0.1, noise=0.7)
    assert oblong.deviations < 5


def test_momentum_closes_over_two_matrices() -> None:
    loss, left, right = wide(2)
    law = balance_momentum(loss, left, right, decay=0.2, rate=0.4, forgetting=0.5, until=25.0, points=41)
    assert law.imbalance.relative_error < 1e-8
    assert law.exchange.relative_error < 1e-8
    # What stays of the imbalance is what the average's own imbalance feeds.
    sizes = law.imbalance.simulated.flatten(1).norm(dim=1)
    assert float(sizes[-1]) <= law.bound + 2 * math.exp(-2 * 0.4 * 0.2 * 25.0) * float(sizes.max())


def test_live_dead_and_empty_directions_close_at_their_own_rates() -> None:
    found = gap_rates(torch.tensor([1.0, 0.5, 0.15, 0.0]).double(), decay=0.3)
    assert found.rates.predicted.tolist() == pytest.approx([1.2, 1.2, 0.9, 0.6])
    assert found.rates.relative_error < 1e-4
    assert found.amplitudes.error < 1e-6
    whole = gap_rates(torch.tensor([1.0, 0.15]).double(), decay=0.15, convention=Convention.WHOLE)
    assert whole.rates.predicted.tolist() == pytest.approx([1.2, 0.9])


def test_the_gap_falls_between_two_and_four_times_the_decay() -> None:
    left, right = random_factors((5, 5), rank=5, scale=0.5, seed=0)
    loss, lam = MatrixLoss.denoising(SPECTRUM), 0.1
    law = balance_flow(loss, left, right, decay=lam, until=40.0, points=41)
    late = law.gap_rates[25:35]
    assert float(late.min()) > 2 * lam
    assert late[-1].item() == pytest.approx(4 * lam, rel=0.01)
    some_dead = balance_flow(loss, left, right, decay=0.5, until=12.0, points=13)
    assert bool((some_dead.gap_rates[6:] >= 2 * 0.5 - 1e-6).all())


def test_shrink_factors_of_whole_schedules() -> None:
    steps = 19_560
    cosine = 3e-4 * (1 + torch.cos(torch.pi * torch.arange(steps) / steps))
    assert shrink_factor(0.1, cosine) == pytest.approx(0.31, abs=0.005)
    assert shrink_factor(0.1, torch.full((103_000,), 2.9e-4)) == pytest.approx(math.exp(-2 * 0.1 * 29.87), rel=0.01)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: balance_flow(*wide(), decay=-0.1, until=1.0), "a decay of -0.1 was given"),
        (lambda: balance_flow(*wide(), decay=0.1, until=0.0), "until = 0.0 was given"),
        (lambda: balance_flow(wide()[0], torch.ones(3, 3), torch.ones(3, 3), decay=0.1, until=1.0), "4x3 matrices"),
        (
            lambda: balance_flow(wide()[0], torch.full((4, 2), torch.nan), torch.ones(2, 3), decay=0, until=1),
            "NaN or Inf",
        ),
        (lambda: balance_descent(*wide(), decay=0.5, rate=1.0, steps=5), "below 1,"),
        (lambda: balance_descent(*wide(), decay=0.0, rate=5.0, steps=500), "diverged within 500 steps"),
        (lambda: gap_rates(torch.tensor([0.3, 0.1]), decay=0.3), "equals the threshold 0.3"),
        (lambda: gap_rates(torch.tensor([0.3]), decay=0.0), "nothing falls without it"),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
