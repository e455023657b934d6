"""Numbers of a record are short, and bounds never smaller than what they bound."""

import math

from hypothesis import given
from hypothesis import strategies as st

from rankwise.numbers import bound, number


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_a_bound_is_never_rounded_down_and_hardly_up(value: float) -> None:
    short = bound(value)
    assert short is not None
    assert value <= short <= value * 1.011


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_numbers_are_finite_or_null(value: float) -> None:
    short = number(value)
    assert (short is None) == (not math.isfinite(value))
    assert short is None or math.isclose(short, value, rel_tol=1e-8, abs_tol=0)
