"""The layouts that are known: the built-in table, and what a user registered."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from rankwise.errors import UserError
from rankwise.sites.layout import Layout
from rankwise.sites.tables import parse_layouts

_registered: list[Layout] = []


@lru_cache(maxsize=1)
def built_in() -> tuple[tuple[Layout, ...], dict[str, Any]]:
    """The shipped table, parsed, and its raw form for user tables to extend."""
    layouts: list[Layout] = []
    raw: dict[str, Any] = {}
    pages = sorted(files("rankwise.sites").joinpath("layouts").iterdir(), key=lambda page: page.name)
    for page in pages:
        if page.name.endswith(".toml"):
            new, raw = parse_layouts(page.read_text(encoding="utf-8"), origin=f"the built-in {page.name}", known=raw)
            layouts += new
    # What a configuration says is more exact than the class of a module: that comes last.
    return tuple(sorted(layouts, key=lambda layout: bool(layout.classes))), raw


def known_layouts() -> tuple[Layout, ...]:
    """All layouts, those registered last first, so that a user's own entry wins."""
    return (*reversed(_registered), *built_in()[0])


def is_built_in(layout: Layout) -> bool:
    """Whether a layout is one of the table that ships, and not another of the same name."""
    return any(layout is each for each in built_in()[0])


def register_layout(layout: Layout | str | Path) -> tuple[Layout, ...]:
    """Make private architectures known: a `Layout`, a TOML file's path, or TOML text, in the built-in table's form.

    Returns the layouts that were registered. A layout of a name registered before replaces it.

    >>> register_layout('''
    ... [mine]
    ... types = ["my-model"]
    ... sizes = { h = "heads", r = "width // heads" }
    ... [mine.attention.self]
    ... at = "blocks.{layer}.attn"
    ... q = "q: (h r) d"
    ... k = "k: (h r) d"
    ... ''')[0].name
    'mine'
    """
    if isinstance(layout, Layout):
        new: Iterable[Layout] = [layout]
    else:
        text, origin = _read(layout)
        new = parse_layouts(text, origin=origin, known=built_in()[1])[0]
    new = tuple(new)
    names = {each.name for each in new}
    _registered[:] = [each for each in _registered if each.name not in names] + list(new)
    return new


def forget_layout(name: str) -> None:
    """Take a registered layout away again."""
    if name not in {each.name for each in _registered}:
        raise UserError(f"no layout called '{name}' was registered")
    _registered[:] = [each for each in _registered if each.name != name]


def _read(source: str | Path) -> tuple[str, str]:
    if isinstance(source, str) and "\n" in source:
        return source, "the given text"
    path = Path(source)
    try:
        return path.read_text(encoding="utf-8"), path.name
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the layout file {path}: {error}") from None
