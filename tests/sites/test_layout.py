"""Reading the layout table: what each line means, and one clear sentence for each way to write it wrongly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.sites.factor import LayoutError
from rankwise.sites.layout import Layout, Norm, Rotary, Weight, parse_layouts

SMALL = """
[small]
types = ["small"]
sizes = { h = "heads" }
[small.attention.self]
at = "blocks.{layer}.attn"
q = "q: (h r) d"
k = "k: (h r) d"
"""


def only(text: str) -> Layout:
    layouts, _ = parse_layouts(text, origin="mine.toml")
    assert len(layouts) == 1
    return layouts[0]


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


@pytest.mark.parametrize("text", ["", "q_proj", "q_proj:", ": h r", "q proj: h r", "q: (h r d!", "q: h-r"])
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


def test_a_table_is_read_line_by_line():
    layout = only(
        SMALL
        + """
v = "v: (h r) d"
o = "o: d (h r)"
q_norm = "q_norm: r"
rotary = { pairs = "interleaved", rotated = "r // 2", start = 4 }
norm = { kind = "layer", eps = 1e-5, offset = 1, over = "width", after_rotary = true, when = "normed" }
scale = 1
softcap = "cap"
value_scale = 0.5
cross = true
when = "not old"
rest = "a gate"
notes = ["one", "two"]
"""
    )
    block = layout.attention["self"]
    assert (layout.name, layout.types, layout.sizes, layout.origin) == (
        "small",
        ("small",),
        {"h": "heads"},
        "mine.toml",
    )
    assert block.q == Weight("q", "(h r) d")
    assert block.rotary == Rotary(pairs="interleaved", rotated="r // 2", start=4)
    assert block.norm == Norm(kind="layer", eps=1e-5, offset=1, over="width", after_rotary=True, when="normed")
    assert (block.scale, block.softcap, block.value_scale, block.cross) == (1, "cap", 0.5, True)
    assert (block.when, block.rest, block.notes) == ("not old", "a gate", ("one", "two"))


def test_a_layout_extends_another_and_takes_lines_away():
    layouts, raw = parse_layouts(
        SMALL
        + """
v = "v: (h r) d"
rotary = { pairs = "half" }
[large]
extends = "small"
types = ["large"]
sizes = { h = "", g = "groups" }
[large.attention.self]
q = "query: (g r) d"
v = ""
rotary = {}
[large.attention.cross]
at = "blocks.{layer}.cross"
q = "q: (g r) d"
k = "k: (g r) d"
""",
        origin="mine.toml",
    )
    small, large = layouts
    assert (small.types, large.types) == (("small",), ("large",))
    assert large.sizes == {"g": "groups"}
    block = large.attention["self"]
    assert block.at == "blocks.{layer}.attn"
    assert (block.q, block.k, block.v, block.rotary) == (Weight("query", "(g r) d"), Weight("k", "(h r) d"), None, None)
    assert set(large.attention) == {"self", "cross"}
    assert small.attention["self"].v is not None
    further, _ = parse_layouts('[third]\nextends = "large"\n', origin="other.toml", known=raw)
    assert set(further[0].attention) == {"self", "cross"}
    assert further[0].types == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[small", r"mine\.toml is not valid TOML: "),
        ("small = 3", r"mine\.toml: 'small' must be a table, as in \[small\]"),
        ("[small]\ntypes = ['a']", r"layout 'small' has no \[small\.attention\.…\] table"),
        ("[small]\nextends = 'big'", r"layout 'small' extends 'big', which is not defined before it"),
        (
            SMALL + "querry = 'q: h r'",
            r"layout 'small', attention 'self' has no line called 'querry': it may have at, ",
        ),
        ("[small]\nkind = 'x'\n[small.attention.self]\nat='a'", r"layout 'small' has no line called 'kind'"),
        (
            "[small.attention.self]\nq = 'q: h r'",
            r"attention 'self' needs a line 'at': the path of the attention module",
        ),
        ("[small.attention]\nself = 3", r"attention 'self' needs a line 'at'"),
        (SMALL + "v = 'v'", r"attention 'self': 'v' does not say where a weight is"),
        (SMALL + "v = 3", r"attention 'self': the line 'v' must be text in quotes, not 3"),
        (SMALL + "rotary = { pairs = 'third' }", r"rotary pairs are 'half' or 'interleaved', not 'third'"),
        (SMALL + "rotary = { pair = 'half' }", r"has no line called 'pair': it may have pairs, rotated, start"),
        (SMALL + "rotary = 'half'", r"the line 'rotary' must be a table, as in rotary = { … }, not 'half'"),
        (SMALL + "norm = { kind = 'batch' }", r"is 'rms', 'layer' or 'l2', not 'batch'"),
        (SMALL + "norm = { over = 'all' }", r"goes over the 'head' or the whole 'width', not 'all'"),
        (SMALL + "scale = 'r **'", r"attention 'self': 'r \*\*' is not an expression"),
        (SMALL + "scale = [1]", r"attention 'self': \[1\] is neither a number nor an expression in quotes"),
        (SMALL + "notes = 'one'", r"the line 'notes' must be a list of texts, as in notes = "),
        ("[small]\ntypes = 'small'\n[small.attention.self]\nat='a'", r"the line 'types' must be a list of texts"),
        (
            "[small]\nsizes = { h = 'a +' }\n[small.attention.self]\nat='a'",
            r"layout 'small': 'a \+' is not an expression",
        ),
        (SMALL + "v = 'v: c d, rows 0 to (l'", r"'\(l' is not an expression"),
    ],
)
def test_each_mistake_is_said_in_one_line(text, message):
    with pytest.raises(LayoutError, match=message) as caught:
        parse_layouts(text, origin="mine.toml")
    assert len(str(caught.value).splitlines()) == 1


@given(st.text(max_size=80))
def test_any_text_is_a_table_or_refused(text):
    try:
        parse_layouts(text, origin="fuzz")
    except LayoutError as error:
        message = str(error)
    else:
        message = "read"
    assert message
