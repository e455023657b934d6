"""Momentum with decay: two equations for the imbalance."""

from __future__ import annotations

import math

from rankwise.theory import (
    balance_momentum,
)
from tests.theory.rugged import wide


def test_momentum_closes_over_two_matrices() -> None:
    loss, left, right = wide(2)
    law = balance_momentum(loss, left, right, decay=0.2, rate=0.4, forgetting=0.5, until=25.0, points=41)
    assert law.imbalance.relative_error < 1e-8
    assert law.exchange.relative_error < 1e-8
    # What stays of the imbalance is what the average's own imbalance feeds.
    sizes = law.imbalance.simulated.flatten(1).norm(dim=1)
    assert float(sizes[-1]) <= law.bound + 2 * math.exp(-2 * 0.4 * 0.2 * 25.0) * float(sizes.max())
