"""The words of --select."""

import pytest

from rankwise.errors import UserError
from rankwise.scans.select import Selection
from rankwise.sites.site import Site
from rankwise.sites.sites import Sites


def sites() -> Sites:
    names = [
        ("layers.0.qk", "qk", 0),
        ("layers.0.ov", "ov", 0),
        ("layers.3.qk", "qk", 3),
        ("head.matrix", "matrix", None),
    ]
    return Sites([Site(name=name, kind=kind, layer=layer, factors=()) for name, kind, layer in names])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["layers.0.qk", "layers.0.ov", "layers.3.qk", "head.matrix"]),
        (["kind=qk"], ["layers.0.qk", "layers.3.qk"]),
        (["kind=qk+ov,layer=0"], ["layers.0.qk", "layers.0.ov"]),
        (["layer=1-3"], ["layers.3.qk"]),
        (["layer=0", "layer=3", "kind=qk"], ["layers.0.qk", "layers.3.qk"]),
        (["name=layers.*.ov+head*"], ["layers.0.ov", "head.matrix"]),
    ],
)
def test_selects(words: list[str], expected: list[str]) -> None:
    assert list(Selection.parse(words)(sites()).names) == expected


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("kind=nope", "no kind 'nope'"),
        ("layer=x", "'x' is no layer"),
        ("layer=5-2", "'5-2' is no range"),
        ("layer=0-99999999999", "is no range"),
        ("colour=red", "cannot select by 'colour=red'"),
        ("qk", "cannot select by 'qk'"),
    ],
)
def test_bad_words_say_what_is_wrong(word: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        Selection.parse([word])


def test_an_empty_selection_says_what_there_is() -> None:
    with pytest.raises(UserError, match=r"selects none of the 4 sites: there are matrix, ov, qk in layers 0 to 3"):
        Selection.parse(["kind=lora"])(sites())
