"""Biases: augmented factors, and what undecayed ones leave."""

from __future__ import annotations

from rankwise.theory import (
    MatrixLoss,
    biased_balance,
    random_factors,
)


def test_undecayed_biases_leave_the_weights_balanced() -> None:
    factors = random_factors((4, 4), rank=2, scale=0.8, seed=0)
    loss = MatrixLoss.rugged((4, 4), seed=3, waves=5)
    free = biased_balance(loss, *factors, decay=0.2, bias_decay=0.0, until=1.5, points=7)
    assert free.imbalance.relative_error < 1e-8
    assert float(free.weights.abs().max()) < 1e-10 < 1e-2 < float(free.biases.abs().max())
    charged = biased_balance(loss, *factors, decay=0.2, bias_decay=0.1, until=1.5, points=7)
    assert charged.imbalance.relative_error < 1e-8
    assert charged.stationary.error < 1e-10 < 1e-4 < float(charged.weights.abs().max())
