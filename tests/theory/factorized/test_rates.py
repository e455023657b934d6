"""How fast the gap closes, direction by direction."""

from __future__ import annotations

import pytest
import torch

from rankwise.errors import UserError
from rankwise.theory import (
    Convention,
    MatrixLoss,
    balance_flow,
    gap_rates,
    random_factors,
)
from tests.theory.rugged import SPECTRUM


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


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: gap_rates(torch.tensor([0.3, 0.1]), decay=0.3), "equals the threshold 0.3"),
        (lambda: gap_rates(torch.tensor([0.3]), decay=0.0), "nothing falls without it"),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
