"""The closed forms of what decay does to singular values."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import UserError
from rankwise.theory import (
    live_values,
    ridge,
    schatten_shrinkage,
    vanishing_point,
)
from tests.theory.rugged import SPECTRUM


@given(st.floats(0.01, 3.0), st.integers(1, 6), st.floats(0.0, 5.0))
@settings(max_examples=60, deadline=None)
def test_shrinkage_minimizes_what_it_says(lam, factors, s) -> None:
    found = float(schatten_shrinkage(torch.tensor([s]).double(), lam, factors=factors))
    grid = torch.linspace(0, 6, 60_001, dtype=torch.float64)
    cost = (grid - s).square() / 2 + lam * factors / 2 * grid ** (2 / factors)
    own = (found - s) ** 2 / 2 + lam * factors / 2 * found ** (2 / factors)
    assert own <= float(cost.min()) + 1e-9


def test_live_points_exist_from_the_vanishing_point_on() -> None:
    for factors in (3, 4, 7):
        least = vanishing_point(0.8, factors=factors)
        below, above = live_values(least * torch.tensor([0.999, 1.001], dtype=torch.float64), 0.8, factors=factors)
        assert below == 0 < above
        assert float(above - least * 1.001 + 0.8 * above ** (2 / factors - 1)) == pytest.approx(0.0, abs=1e-12)
    assert torch.equal(ridge(SPECTRUM, 1.0), SPECTRUM / 2)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: vanishing_point(1.0, factors=1), "values vanish for 2 and more"),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
