"""What each start and each decay leave of the imbalance, and what that costs."""

from __future__ import annotations

import pytest

from rankwise.errors import UserError
from rankwise.theory import (
    Penalty,
    Start,
    start_and_decay,
)


@pytest.mark.slow
def test_a_spectral_start_and_frobenius_decay_need_each_other() -> None:
    found = start_and_decay()
    spectral, regular = (
        {penalty: found.reached(start, penalty) for penalty in Penalty} for start in (Start.SPECTRAL, Start.REGULAR)
    )
    # What conserves the imbalance and what damps it, within what finite noisy steps take from it.
    assert found.imbalance.predicted[4].item() == pytest.approx(found.imbalance.simulated[4].item(), rel=0.05)
    assert found.imbalance.simulated[[3, 5]].tolist() == pytest.approx(found.begun[[3, 5]].tolist(), rel=0.1)
    assert float(found.imbalance.simulated[:3].max()) < 1e-2
    assert min(spectral.values()) > 0.97 * found.best
    assert regular[Penalty.FACTORS] > 0.97 * found.best
    assert max(regular[Penalty.NONE], regular[Penalty.PRODUCT]) < 0.92 * found.best


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: start_and_decay(rank=99), "rank 99 of 48"),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
