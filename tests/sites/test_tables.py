"""Reading the layout table: what each line means, and one clear sentence for each way to write it wrongly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.sites.factor import LayoutError
from rankwise.sites.layout import Layout, Norm, Rotary, Weight
from rankwise.sites.tables import parse_layouts

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
        ("[small]\nkind = 'x'\n[small.attention.self]\nat='{layer}'", r"layout 'small' has no line called 'kind'"),
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
        ("[small]\ntypes = 'small'\n[small.attention.self]\nat='{layer}'", r"the line 'types' must be a list of texts"),
        (
            "[small]\nsizes = { h = 'a +' }\n[small.attention.self]\nat='{layer}'",
            r"layout 'small': 'a \+' is not an expression",
        ),
        (SMALL + "v = 'v: c d, rows 0 to (l'", r"'\(l' is not an expression"),
        (
            SMALL + "site = 'stack.{number}'",
            r"'site' names {number}, which the path 'blocks.{layer}.attn' does not give",
        ),
        ("[small.attention.self]\nat = 'attn'\nq = 'q: h r'", r"'site' names {layer}, which the path 'attn' does not"),
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
