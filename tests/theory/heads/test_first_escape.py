"""The first escape from zero: its direction and moment, to many digits."""

from __future__ import annotations

import math

import pytest

from rankwise.errors import UserError
from rankwise.theory import (
    first_escape,
)
from tests.theory.rugged import toy

LOG10 = math.log(10)


@pytest.mark.slow
def test_the_first_escape_to_many_digits_and_the_correction_of_a_finite_step() -> None:
    loss, starts = toy(6, 5, 24)
    for rate in (None, 0.5):
        found = first_escape(loss, starts, log_alphas=[-8 * LOG10, -16 * LOG10], learning_rate=rate)
        assert found.product == "OV"
        assert found.slope.relative_error < 1e-6
        assert found.times.relative_error < 1e-4
        assert found.direction.error < 0.01
    sigma = first_escape(loss, starts, log_alphas=[-28.0, -30.0]).rate
    assert found.rate == pytest.approx(math.log1p(0.5 * sigma) / 0.5)
    # Without the correction the slope would be off by half a step's growth.
    assert abs(1 / sigma / found.slope.simulated.item() - 1) > 0.2 * 0.5 * sigma


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda loss, starts: first_escape(loss, starts, log_alphas=[-1.0]), "two or more different ones"),
        (lambda loss, starts: first_escape(loss, starts, log_alphas=[1.0, -9.0]), "above the level"),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call(*toy(4, 5, 8))
    assert "\n" not in str(caught.value)
