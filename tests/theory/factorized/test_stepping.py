"""Gradient descent of decayed factors obeys its law to rounding, at any noise."""

from __future__ import annotations

import math

import pytest

from rankwise.errors import UserError
from rankwise.theory import (
    Convention,
    MatrixLoss,
    balance_descent,
    random_factors,
)
from tests.theory.rugged import SPECTRUM, wide


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


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: balance_descent(*wide(), decay=0.5, rate=1.0, steps=5), "below 1,"),
        (lambda: balance_descent(*wide(), decay=0.0, rate=5.0, steps=500), "diverged within 500 steps"),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
