"""What is shown of untrusted names cannot steer a terminal."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from rankwise.text import printable


@given(st.text(st.characters(), max_size=300), st.integers(2, 150))
def test_nothing_hidden_and_never_longer_than_the_limit(text: str, limit: int) -> None:
    shown = printable(text, limit=limit)
    assert len(shown) <= limit
    assert all(unicodedata.category(character)[0] != "C" for character in shown)
    assert len(shown.splitlines()) <= 1


@given(st.text(st.characters(categories=["L", "N", "P"]), max_size=120))
def test_ordinary_names_are_shown_as_they_are(text: str) -> None:
    assert printable(text) == text


def test_escape_sequences_go_as_a_whole() -> None:
    assert printable("a\x1b[2J\x1b]0;title\x07b") == "a??b"
    assert printable("a\x1b]8;;http://x\x1b\\b") == "a?b"
    assert printable("first\nsecond\u2028third\u202efourth") == "first?second?third?fourth"


def test_a_name_of_megabytes_is_cut() -> None:
    assert printable("x" * 10_000_000) == "x" * 119 + "…"


def test_markup_is_left_to_whoever_writes_a_page() -> None:
    assert printable("<script>") == "<script>"
