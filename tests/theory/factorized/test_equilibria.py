"""Where training with decay ends: thresholds, ridges, Schatten quasi-norms."""

from __future__ import annotations

import math

import pytest
import torch

from rankwise.errors import UserError
from rankwise.theory import (
    Convention,
    Penalty,
    equilibria,
    soft_threshold,
)
from tests.theory.rugged import SPECTRUM

RAMP = torch.linspace(3, 0.1, 20, dtype=torch.float64)


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


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: equilibria(torch.ones(2), decay=0.1), r"the target has shape \(2,\)"),
        (lambda: equilibria(SPECTRUM, decay=[]), "0 decays, 2 factors"),
        (lambda: equilibria(SPECTRUM, decay=0.1, rank=0), "2 factors of width 0"),
        (lambda: equilibria(SPECTRUM, decay=-1.0, penalty=Penalty.PRODUCT), "a decay of -1.0 was given"),
        (lambda: equilibria(SPECTRUM, decay=math.nan), "a decay of nan was given"),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
