"""The arithmetic of the layout table: what it computes, and all that it refuses."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.sites.expression import ExpressionError, evaluate, names_in

VALUES = {
    "heads": 12,
    "width": 768,
    "kinds": ["full", "window"],
    "layer": 1,
    "nested": {"factor": 4.0, "inner": {"deep": 7}},
    "text": "alibi",
}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("heads", 12),
        ("width // heads", 64),
        ("width / heads - 1", 63.0),
        ("width % 100", 68),
        ("-heads + 2 ** 3", -4),
        ("missing", None),
        ("missing or heads", 12),
        ("missing or also_missing", None),
        ("heads and width", 768),
        ("0 or width", 768),
        ("kinds[layer]", "window"),
        ("kinds[layer] == 'window'", True),
        ("kinds[0] != 'window'", True),
        ("heads if kinds[layer] == 'full' else 0", 0),
        ("nested['factor']", 4.0),
        ("nested['absent']", None),
        ("nested['inner']['deep']", 7),
        ("missing['anything']", None),
        ("missing['a']['b'] or 3", 3),
        ("'ali' in text", True),
        ("'full' in kinds", True),
        ("'full' not in kinds", False),
        ("'x' in missing", False),
        ("'x' not in missing", True),
        ("missing == None", True),
        ("missing == 0", False),
        ("not missing", True),
        ("heads > 3", True),
        ("heads <= 3", False),
        ("heads >= 12", True),
        ("log(nested['factor'])", math.log(4.0)),
        (" heads ", 12),
    ],
)
def test_it_computes(expression, expected):
    assert evaluate(expression, VALUES) == expected


@pytest.mark.parametrize("number", [3, 2.5, True])
def test_a_number_is_itself(number):
    assert evaluate(number, {}) == number


@pytest.mark.parametrize(
    "expression",
    [
        "().__class__",
        "heads.real",
        "text.format(heads)",
        "__import__('os')",
        "open('secret')",
        "log(2, 3)",
        "log(x=2)",
        "abs(heads)",
        "nested['inner'].get",
        "lambda: 1",
        "[heads for heads in kinds]",
        "[1, 2]",
        "{'a': 1}",
        "f'{heads}'",
        "(heads := 3)",
        "1 < heads < 20",
        "kinds[0:1]",
        "heads @ width",
        "heads << 200",
        "~heads",
        "1j",
        "b'bytes'",
        "...",
        "*kinds",
        "heads; width",
        "import os",
        "",
        "   ",
        "heads +",
        "\x00",
    ],
)
def test_it_refuses_what_is_not_arithmetic(expression):
    with pytest.raises(ExpressionError, match=r"is not allowed in a layout|is not an expression"):
        evaluate(expression, VALUES)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("missing // 2", r"'missing // 2' needs two numbers, got None and 2"),
        ("text * 1000", r"needs two numbers, got 'alibi' and 1000"),
        ("heads // 0", r"cannot compute 'heads // 0' with heads = 12: "),
        ("kinds[9]", r"cannot compute 'kinds\[9\]' with kinds = \['full', 'window'\]: "),
        ("heads[0]", r"cannot compute 'heads\[0\]' with heads = 12: "),
        ("missing < 3", r"cannot compute 'missing < 3' with missing = None: "),
        ("-text", r"cannot compute '-text' with text = 'alibi': "),
        ("log(0)", r"cannot compute 'log\(0\)'"),
        ("'a' in heads", r"cannot compute"),
        ("(0 - 8) ** 0.5", r"is no real number: -8 to the power 0.5"),
    ],
)
def test_it_says_what_could_not_be_computed(expression, message):
    with pytest.raises(ExpressionError, match=message):
        evaluate(expression, VALUES)


@pytest.mark.parametrize(
    "expression",
    [
        "9 ** 9 ** 9",
        "2 ** 1e9",
        "((((9 ** 64) ** 64) ** 64) ** 64) ** 64",
        "2.0 ** 65",
        "(10 ** 13) ** 2",
        "1 ** (1e308 * 10)",
    ],
)
def test_no_power_grows_without_bound(expression):
    with pytest.raises(ExpressionError, match="is too large"):
        evaluate(expression, {})


def test_a_long_expression_is_refused_unread():
    with pytest.raises(ExpressionError, match="an expression of 5001 characters is too long"):
        evaluate("1+" * 2500 + "1", {})


@pytest.mark.parametrize(
    "nested", ["(" * 190 + "1" + ")" * 190, "-" * 390 + "1", "not " * 90 + "1", "a[" * 130 + "0" + "]" * 130]
)
def test_deep_nesting_is_computed_or_refused_but_never_crashes(nested):
    _, refusal = outcome(nested)
    assert "\n" not in refusal


def test_names_are_those_that_it_needs():
    assert names_in("a or b['c'][layer] + log(d)") == {"a", "b", "layer", "d", "log"}
    assert names_in(3) == set()


def outcome(expression: str) -> tuple[object, str]:
    """The value of an expression, or what it was refused for."""
    try:
        return evaluate(expression, VALUES), ""
    except ExpressionError as error:
        return None, str(error)


numbers = st.integers(1, 9).map(str)
names = st.sampled_from(list(VALUES))
trees = st.recursive(
    numbers | names | st.sampled_from(["'full'", "None"]),
    lambda below: st.one_of(
        st.tuples(below, st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "==", "<", "in", "or", "and"]), below)
        .map(" ".join)
        .map("({})".format),
        st.tuples(below, below).map("{0[0]}[{0[1]}]".format),
        st.tuples(below, below, below).map("({0[0]} if {0[1]} else {0[2]})".format),
    ),
    max_leaves=12,
)


@given(trees)
def test_a_well_formed_expression_gives_a_plain_value_or_one_clear_line(expression):
    result, refusal = outcome(expression)
    assert "\n" not in refusal
    assert result is None or isinstance(result, int | float | str | list | dict)


@given(st.text(max_size=60))
def test_any_text_is_computed_or_refused_in_one_line(text):
    _, refusal = outcome(text)
    assert len(refusal.splitlines()) <= 1


def test_a_hostile_expression_takes_no_memory():
    # The largest number that the limits let through has some thousand digits.
    digits = len(str(evaluate("(2 ** 40) ** 64 * (2 ** 40) ** 64", {})))
    assert digits < 2000
