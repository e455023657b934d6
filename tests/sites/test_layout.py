"""How one weight is written: what each clause means, and one clear sentence for each way to write it wrongly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.sites.factor import LayoutError
from rankwise.sites.layout import AttentionLayout, Norm, Rotary, Weight


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("q_proj: (h r) d", Weight("q_proj", "(h r) d")),
        ("  a.b_1 :  d   (h  r)  ", Weight("a.b_1", "d (h r)")),
        ("kv: c d, rows 0 to l", Weight("kv", "c d", rows=("0", "l"))),
        ("kv: r d, rows l + 1 to 2 * l", Weight("kv", "r d", rows=("l + 1", "2 * l"))),
        ("qkv: (h part r) d, part 1", Weight("qkv", "(h part r) d", part=("1", None))),
        ("qkv: (g part r) d, part q + 1", Weight("qkv", "(g part r) d", part=("q + 1", None))),
        ("qkv: (g part r) d, part 0:q as q", Weight("qkv", "(g part r) d", part=("0", "q"), part_axis="q")),
        (
            "qb: (h part) c, rows 0 to n, part n:n+p as r",
            Weight("qb", "(h part) c", rows=("0", "n"), part=("n", "n+p"), part_axis="r"),
        ),
        ("norm: r", Weight("norm", "r")),
    ],
)
def test_a_weight_is_read(text, expected):
    assert Weight.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["", "q_proj", "q_proj:", "q_proj: ", "q_proj: ( )", ": h r", "q proj: h r", "q: (h r d!", "q: h-r"]
)
def test_a_weight_without_name_and_axes_is_refused(text):
    with pytest.raises(LayoutError, match="does not say where a weight is: write 'name: axes'"):
        Weight.parse(text)


@pytest.mark.parametrize(
    "clause", ["columns 1 to 2", "rows 1", "part", "part 0:2", "part 0:2 as Two", "rows 1 until 2"]
)
def test_an_unknown_clause_is_refused(clause):
    with pytest.raises(LayoutError, match=f"'{clause}' in 'q: a b, {clause}' is neither 'rows A to B' nor"):
        Weight.parse(f"q: a b, {clause}")


def test_groups_are_one_list_for_each_dimension():
    assert Weight.parse("w: (h part r) d e").groups == [["h", "part", "r"], ["d"], ["e"]]


@given(st.text(alphabet="qk_proj.:(), hrd0to19aspart", max_size=40))
def test_any_text_is_a_weight_or_one_clear_line(text):
    try:
        weight = Weight.parse(text)
    except LayoutError as error:
        message = str(error)
    else:
        message = ""
        assert weight.groups
    assert len(message.splitlines()) <= 1


axis = st.sampled_from(["h", "g", "q", "r", "d", "part"])
dimension = st.one_of(
    axis, st.lists(axis, min_size=1, max_size=4, unique=True).map(lambda names: f"({' '.join(names)})")
)


@given(
    name=st.from_regex(r"[a-z_]+(\.[a-z_]+){0,2}", fullmatch=True),
    dimensions=st.lists(dimension, min_size=1, max_size=3),
    rows=st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
    part=st.none() | st.integers(0, 5),
)
def test_what_is_written_is_what_is_read(name, dimensions, rows, part):
    clauses = [f"rows {rows[0]} to {rows[1]}"] if rows else []
    clauses += [f"part {part}"] if part is not None else []
    weight = Weight.parse(", ".join([f"{name}: {' '.join(dimensions)}", *clauses]))
    assert (weight.name, weight.axes) == (name, " ".join(dimensions))
    assert weight.rows == (tuple(map(str, rows)) if rows else None)
    assert weight.part == ((str(part), None) if part is not None else None)
    assert [len(group) for group in weight.groups] == [len(each.strip("()").split()) for each in dimensions]


def test_a_block_written_in_python_takes_weights_as_text():
    block = AttentionLayout(at="attn", q="q: (h r) d", k=Weight("k", "(h r) d"))  # pyright: ignore[reportArgumentType]
    assert block.q == Weight("q", "(h r) d")
    with pytest.raises(LayoutError, match="does not say where a weight is"):
        AttentionLayout(at="attn", q="q")  # pyright: ignore[reportArgumentType]


def test_rotary_and_norm_refuse_unknown_kinds():
    with pytest.raises(LayoutError, match="rotary pairs are 'half' or 'interleaved', not 'third'"):
        Rotary(pairs="third")
    with pytest.raises(LayoutError, match="is 'rms', 'layer' or 'l2', not 'batch'"):
        Norm(kind="batch")
    with pytest.raises(LayoutError, match="goes over the 'head' or the whole 'width', not 'all'"):
        Norm(over="all")
