"""Two decays, two rates, decay on one factor."""

from __future__ import annotations

import pytest
import torch

from rankwise.errors import UserError
from rankwise.theory import (
    MatrixLoss,
    one_sided_decay,
    random_factors,
    unequal_decay,
    unequal_rates,
)
from tests.theory.rugged import SPECTRUM


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


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: unequal_decay(SPECTRUM, left_decay=0.1, right_decay=0.0), "see one_sided_decay"),
        (lambda: one_sided_decay(torch.ones(1), decay=0.1, times=torch.tensor([5.0])), "give two or more"),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
