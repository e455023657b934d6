"""Registering layouts: as an object, as TOML text, as a file; errors name what did not fit."""

from __future__ import annotations

import pytest

from rankwise.errors import UserError
from rankwise.sites.factor import LayoutError
from rankwise.sites.find import find
from rankwise.sites.layout import AttentionLayout, Layout, Weight
from rankwise.sites.registry import built_in, forget_layout, known_layouts, register_layout

TABLE = """
[house]
types = ["house"]
sizes = { h = "heads" }
[house.attention.self]
at = "blocks.{layer}.attn"
q = "q: (h r) d"
k = "k: (h r) d"
"""
SHAPES: dict[str, tuple[int, ...]] = {"blocks.0.attn.q.weight": (6, 5), "blocks.0.attn.k.weight": (6, 5)}
CONFIG = {"model_type": "house", "heads": 3}


@pytest.fixture(autouse=True)
def _forgotten():
    before = {layout.name for layout in known_layouts()}
    yield
    for layout in known_layouts():
        if layout.name not in before:
            forget_layout(layout.name)


def names() -> list[str]:
    return [site.name for site in find(SHAPES, config=CONFIG)]


def test_text_a_file_and_an_object_say_the_same(tmp_path):
    assert names() == []
    file = tmp_path / "house.toml"
    file.write_text(TABLE, encoding="utf-8")
    written = Layout(
        name="house",
        types=("house",),
        sizes={"h": "heads"},
        attention={
            "self": AttentionLayout(at="blocks.{layer}.attn", q=Weight("q", "(h r) d"), k=Weight("k", "(h r) d"))
        },
    )
    for given in (TABLE, file, str(file), written):
        (layout,) = register_layout(given)
        assert names() == ["layers.0.qk"]
        assert layout.attention == written.attention
        forget_layout("house")
        assert names() == []


def test_the_origin_is_kept_for_error_messages(tmp_path):
    file = tmp_path / "house.toml"
    file.write_text(TABLE.replace("q = ", "qq = "), encoding="utf-8")
    with pytest.raises(LayoutError, match=r"^house\.toml: layout 'house', attention 'self' has no line called 'qq'"):
        register_layout(file)
    with pytest.raises(LayoutError, match=r"^the given text: layout 'house'"):
        register_layout(TABLE.replace("q = ", "qq = "))


def test_a_layout_that_does_not_fit_shows_pattern_shape_and_parameter():
    register_layout(TABLE)
    sites = find(SHAPES, config={**CONFIG, "heads": 4})
    assert "the pattern '(h r) d -> h d r' with h = 4 does not fit blocks.0.attn.q.weight of shape (6, 5)" in (
        sites.unread[0].reason
    )


def test_a_user_table_extends_the_built_in_one():
    register_layout('[house_llama]\ntypes = ["house"]\nextends = "llama"\n')
    shapes = {f"layers.0.self_attn.{name}_proj.weight": (6, 6) for name in "qkvo"}
    found = find(shapes, config={"model_type": "house", "num_attention_heads": 3})
    assert [site.name for site in found] == ["layers.0.qk", "layers.0.ov"]


def test_registering_again_replaces_and_the_last_one_wins():
    register_layout(TABLE)
    register_layout(TABLE.replace('"blocks.{layer}.attn"', '"nowhere.{layer}"'))
    assert names() == []
    register_layout(TABLE.replace("[house", "[second"))
    assert known_layouts()[0].name == "second"
    assert names() == ["layers.0.qk"]


def test_a_failed_registration_changes_nothing():
    register_layout(TABLE)
    with pytest.raises(LayoutError):
        register_layout(TABLE + "\n[broken]\n")
    assert names() == ["layers.0.qk"]


def test_forgetting_what_was_never_registered_is_said():
    with pytest.raises(UserError, match="no layout called 'nobody' was registered"):
        forget_layout("nobody")
    with pytest.raises(UserError, match="no layout called 'llama' was registered"):
        forget_layout("llama")


def test_a_file_that_cannot_be_read_is_said(tmp_path):
    with pytest.raises(UserError, match=r"cannot read the layout file .*absent\.toml: "):
        register_layout(tmp_path / "absent.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"cannot read the layout file .*binary\.toml: "):
        register_layout(binary)


def test_the_built_in_table_names_every_layout_once():
    layouts, raw = built_in()
    listed = [layout.name for layout in layouts]
    assert len(listed) == len(set(listed)) == len(raw)
    assert all(layout.types or layout.classes or layout.keys for layout in layouts)


def test_reasons_and_notes_of_the_built_in_table_fit_one_line():
    for layout in built_in()[0]:
        for block in layout.attention.values():
            for text in (block.unread, block.rest, *block.notes):
                assert text is None or (len(text) < 150 and not text.endswith(".")), (layout.name, text)
