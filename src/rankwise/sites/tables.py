"""Reading layouts from TOML: the built-in table and a user's own have one form."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from rankwise.sites.expression import ExpressionError, parsed
from rankwise.sites.factor import LayoutError
from rankwise.sites.layout import WEIGHTS, AttentionLayout, Layout, Norm, Rotary, Weight

_NUMBER = re.compile(r"\{(\w*)\}")


def parse_layouts(
    text: str, *, origin: str, known: Mapping[str, Any] | None = None
) -> tuple[list[Layout], dict[str, Any]]:
    """Read a layout table; a layout may extend an earlier one, or one of `known`, and replace some of its lines.

    Returns the layouts and the raw tables with all extensions carried out, for later tables to extend.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LayoutError(f"{origin} is not valid TOML: {error}") from None
    raw: dict[str, Any] = dict(known or {})
    layouts = []
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise LayoutError(f"{origin}: '{name}' must be a table, as in [{name}]")
        raw[name] = _extended(name, table, raw, origin)
        layouts.append(_layout(name, raw[name], origin))
    return layouts, raw


def _extended(name: str, table: dict[str, Any], raw: Mapping[str, Any], origin: str) -> dict[str, Any]:
    parent_name = table.get("extends")
    if parent_name is None:
        return table
    if parent_name not in raw:
        raise LayoutError(f"{origin}: layout '{name}' extends '{parent_name}', which is not defined before it")
    parent = raw[parent_name]
    blocks = {key: dict(block) for key, block in parent.get("attention", {}).items()}
    for key, block in table.get("attention", {}).items():
        merged = {**blocks.get(key, {}), **block}
        # An empty string takes a line of the parent away.
        blocks[key] = {line: value for line, value in merged.items() if line == "at" or value not in ("", {})}
    result = {key: value for key, value in table.items() if key not in ("extends", "attention", "sizes")}
    result.setdefault("input_first", parent.get("input_first", False))
    sizes = {axis: size for axis, size in {**parent.get("sizes", {}), **table.get("sizes", {})}.items() if size != ""}
    return {**result, "sizes": sizes, "attention": {key: block for key, block in blocks.items() if block}}


def _layout(name: str, table: Mapping[str, Any], origin: str) -> Layout:
    where = f"{origin}: layout '{name}'"
    _only(where, table, ("types", "classes", "keys", "sizes", "attention", "input_first"))
    if not table.get("attention"):
        raise LayoutError(f"{where} has no [{name}.attention.…] table")
    blocks = {key: _block(f"{where}, attention '{key}'", block) for key, block in table["attention"].items()}
    sizes = dict(table.get("sizes", {}))
    _readable(where, sizes.values())
    for key, block in blocks.items():
        given = {"path", "layer"} if table.get("classes") else set(_NUMBER.findall(block.at))
        if block.unread is None and (unknown := set(_NUMBER.findall(block.site)) - given):
            name = min(unknown)
            raise LayoutError(
                f"{where}, attention '{key}': 'site' names {{{name}}}, which the path '{block.at}' does not give"
            )
    return Layout(
        name=name,
        types=_strings(where, table, "types"),
        classes=_strings(where, table, "classes"),
        keys=_strings(where, table, "keys"),
        input_first=bool(table.get("input_first", False)),
        sizes=sizes,
        attention=blocks,
        origin=origin,
    )


def _block(where: str, block: Any) -> AttentionLayout:
    if not isinstance(block, dict) or "at" not in block:
        raise LayoutError(f"{where} needs a line 'at': the path of the attention module, as in 'layers.{{layer}}.attn'")
    _only(where, block, tuple(each.name for each in fields(AttentionLayout)))
    values: dict[str, Any] = dict(block)
    try:
        for key in ("at", "site", "unread", "rest", *WEIGHTS):
            if key in values and not isinstance(values[key], str):
                raise LayoutError(f"the line '{key}' must be text in quotes, not {values[key]!r:.40}")
        for key in WEIGHTS:
            if key in values:
                values[key] = Weight.parse(values[key])
                _readable(where, [*(values[key].rows or ()), *(values[key].part or ())])
        for key in ("sizes", "rotary", "norm"):
            if not isinstance(values.get(key, {}), dict):
                raise LayoutError(f"the line '{key}' must be a table, as in {key} = {{ … }}, not {values[key]!r:.40}")
        if "rotary" in values:
            _only(where, values["rotary"], ("pairs", "rotated", "start"))
            _readable(where, values["rotary"].values())
            values["rotary"] = Rotary(**values["rotary"])
        if "norm" in values:
            _only(where, values["norm"], ("kind", "eps", "offset", "over", "after_rotary", "when"))
            _readable(where, [values["norm"].get(key) for key in ("eps", "offset", "when")])
            values["norm"] = Norm(**values["norm"])
    except LayoutError as error:
        raise LayoutError(f"{where}: {error}") from None
    _readable(where, values.get("sizes", {}).values())
    _readable(
        where, [values.get(key) for key in ("scale", "softcap", "rotary_scale", "value_scale", "latent_eps", "when")]
    )
    values["notes"] = _strings(where, values, "notes")
    return AttentionLayout(**values)


def _readable(where: str, expressions: Iterable[Any]) -> None:
    """Say at once, and where, that an expression cannot be read; what it gives is known only with a configuration."""
    for expression in expressions:
        if isinstance(expression, str) and expression:
            try:
                parsed(expression)
            except ExpressionError as error:
                raise LayoutError(f"{where}: {error}") from None
        elif expression is not None and not isinstance(expression, int | float | str):
            raise LayoutError(f"{where}: {expression!r:.40} is neither a number nor an expression in quotes")


def _strings(where: str, table: Mapping[str, Any], line: str) -> tuple[str, ...]:
    given = table.get(line, ())
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise LayoutError(f'{where}: the line \'{line}\' must be a list of texts, as in {line} = ["one", "two"]')
    return tuple(given)


def _only(where: str, table: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    if unknown := sorted(set(table) - set(allowed)):
        raise LayoutError(f"{where} has no line called '{unknown[0]}': it may have {', '.join(allowed)}")
