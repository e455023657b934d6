"""Numbers and text on their way into a page."""

from __future__ import annotations

import base64
import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.report.packing import finite, packed, rounded, rounded_up, script_json

texts = st.text(alphabet=st.one_of(st.sampled_from("<>&\u2028\u2029/!-\"'\\\x00"), st.characters(codec="utf-8")))


@given(st.dictionaries(texts, st.one_of(texts, st.floats(allow_nan=False, allow_infinity=False)), max_size=4))
def test_json_in_a_script_element_is_the_same_value_and_cannot_leave_it(value):
    written = script_json(value)
    assert json.loads(written) == value
    assert not set(written) & set("<>&\u2028\u2029")


def test_a_number_that_is_not_finite_is_a_bug_in_the_page_and_not_written():
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json({"value": math.nan})


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_an_error_bound_is_never_rounded_down_and_grows_by_a_tenth_at_most(bound):
    short = rounded_up(bound)
    assert short is not None
    assert bound <= short <= bound * 1.1000001
    assert len(f"{short:.17g}".replace(".", "").partition("e")[0].strip("0")) <= 17


@given(st.floats(min_value=-1e300, max_value=1e300))
def test_rounding_keeps_seven_digits(value):
    short = rounded(value)
    assert short is not None
    assert math.isclose(short, value, rel_tol=1e-6, abs_tol=1e-320)


@pytest.mark.parametrize("nothing", [None, math.nan, math.inf, -math.inf, "1.0", True, [1.0], 10**400])
def test_what_is_not_a_finite_number_is_none(nothing):
    assert finite(nothing) is None
    assert rounded(nothing) is None
    assert rounded_up(nothing) is None


@given(st.lists(st.one_of(st.none(), st.floats(min_value=-1e30, max_value=1e30)), max_size=8))
def test_packed_numbers_are_little_endian_float32(values):
    raw = base64.b64decode(packed(values))
    assert len(raw) == 4 * len(values)
    for value, (found,) in zip(values, struct.iter_unpack("<f", raw), strict=True):
        if value is None:
            assert math.isnan(found)
        else:
            assert math.isclose(found, value, rel_tol=1e-6, abs_tol=1e-44)


def test_what_float32_cannot_hold_is_packed_as_nan():
    assert math.isnan(struct.unpack("<f", base64.b64decode(packed([1e39])))[0])
