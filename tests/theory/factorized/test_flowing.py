"""Gradient flow of decayed factors damps the imbalance exactly, whatever the loss."""

from __future__ import annotations

import math

import pytest
import torch

from rankwise.errors import UserError
from rankwise.theory import (
    Convention,
    Penalty,
    balance_flow,
    half_life,
)
from tests.theory.rugged import wide


@pytest.mark.parametrize("convention", Convention)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
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
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
