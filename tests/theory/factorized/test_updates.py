"""One step of any optimizer, of noise, and whole schedules."""

from __future__ import annotations

import math

import pytest
import torch

from rankwise.theory import (
    balance_after,
    balance_under_noise,
    random_factors,
    shrink_factor,
)


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


def test_shrink_factors_of_whole_schedules() -> None:
    steps = 19_560
    cosine = 3e-4 * (1 + torch.cos(torch.pi * torch.arange(steps) / steps))
    assert shrink_factor(0.1, cosine) == pytest.approx(0.31, abs=0.005)
    assert shrink_factor(0.1, torch.full((103_000,), 2.9e-4)) == pytest.approx(math.exp(-2 * 0.1 * 29.87), rel=0.01)
