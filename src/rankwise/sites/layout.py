"""What the layout table says of an architecture: where its attention weights lie and how they are stored."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rankwise.sites.expression import ExpressionError, _parse
from rankwise.sites.factor import LayoutError

_WEIGHT = re.compile(r"\s*(?P<name>[\w.]+)\s*:\s*(?P<axes>[\w\s()]+?)\s*(?:,(?P<rest>.*))?")
_ROWS = re.compile(r"rows\s+(?P<first>.+?)\s+to\s+(?P<last>.+)")
_PART = re.compile(r"part\s+(?P<first>[^:]+?)(?:\s*:\s*(?P<last>.+?)\s+as\s+(?P<axis>[a-z]+))?")

Expression = str | int | float


@dataclass(frozen=True)
class Weight:
    """How one weight is stored, read from `name: axes[, rows A to B][, part I | part A:B as x]`.

    The axes are those of the stored tensor in einops notation; `r` is the head size, every other axis that stands with
    it numbers heads, and the remaining one is the width that the weight reads or writes. `rows` cuts the first stored
    axis, `part` picks from the axis of that name, and `part A:B as x` keeps a range of it as the axis `x`.

    >>> Weight.parse("query_key_value: (h part r) d, part 1")
    Weight(name='query_key_value', axes='(h part r) d', rows=None, part=('1', None), part_axis=None)
    """

    name: str
    axes: str
    rows: tuple[str, str] | None = None
    part: tuple[str, str | None] | None = None
    part_axis: str | None = None

    @classmethod
    def parse(cls, text: str) -> Weight:
        match = _WEIGHT.fullmatch(text)
        if match is None:
            raise LayoutError(f"'{text}' does not say where a weight is: write 'name: axes', as in 'q_proj: (h r) d'")
        rows = part = part_axis = None
        for clause in filter(None, map(str.strip, (match["rest"] or "").split(","))):
            if found := _ROWS.fullmatch(clause):
                rows = (found["first"], found["last"])
            elif found := _PART.fullmatch(clause):
                part, part_axis = (found["first"], found["last"]), found["axis"]
            else:
                raise LayoutError(f"'{clause}' in '{text}' is neither 'rows A to B' nor 'part I' nor 'part A:B as x'")
        return cls(match["name"], " ".join(match["axes"].split()), rows, part, part_axis)

    @property
    def groups(self) -> list[list[str]]:
        """The stored axes, one list for each dimension of the tensor."""
        found = re.findall(r"\(([^)]*)\)|(\S+)", self.axes)
        return [inside.split() if inside else [alone] for inside, alone in found]


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary position embedding: `rotated` dimensions of a head from `start`, paired half apart or as neighbours."""

    pairs: str = "half"
    rotated: Expression = "r"
    start: Expression = 0

    def __post_init__(self) -> None:
        if not {"half", "interleaved"} & set(re.findall(r"\w+", self.pairs)):
            raise LayoutError(f"rotary pairs are 'half' or 'interleaved', not '{self.pairs}'")


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A normalization of queries and keys: `kind` is rms, layer or l2, `over` each head or the whole width; the gain is
    `offset + weight`; where `when` does not hold there is none."""

    kind: str = "rms"
    eps: Expression = "rms_norm_eps"
    offset: Expression = 0
    over: str = "head"
    after_rotary: bool = False
    when: str | None = None

    def __post_init__(self) -> None:
        if self.over not in ("head", "width"):
            raise LayoutError(
                f"a norm of queries and keys goes over the 'head' or the whole 'width', not '{self.over}'"
            )
        if self.kind not in ("rms", "layer", "l2"):
            raise LayoutError(f"a norm of queries and keys is 'rms', 'layer' or 'l2', not '{self.kind}'")


_WEIGHTS = (
    *("q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "q_norm", "k_norm", "q_rotary", "k_rotary"),
    *("q_down", "k_down", "v_down", "q_down_norm", "k_down_norm", "v_down_norm"),
)


@dataclass(frozen=True, kw_only=True)
class AttentionLayout:
    """One attention module of an architecture.

    Arguments:
        at: the module's path, with `{layer}` for a number; for layouts matched by class, relative to that module.
        site: the first part of the site names.
        q, k, v, o: the four weights; without q and k (or v and o) there is no such product.
        q_down, k_down, v_down: latent projections in front of q, k and v; `*_down_norm` their gains.
        q_rotary, k_rotary: the decoupled rotary part, a product of its own.
        q_bias, k_bias, v_bias: where the bias is not the neighbour called `bias`.
        q_norm, k_norm, norm: a normalization of queries and keys, and its gains.
        rotary: rotary position embedding of queries and keys.
        scale, softcap: the factor on the logits, and the cap on them.
        rotary_scale: the factor on the decoupled rotary part of the logits, where it is another.
        value_scale: a number that the values are multiplied by.
        cross: keys and values come from another stream.
        when: a condition on the configuration; the block exists only where it holds.
        sizes: sizes of this block that differ from the layout's own.
        unread: why this attention is no product of weights; it is listed, and nothing is read.
        rest: why the matrices of the module that the lines above leave out are no product of weights; they are listed.
        notes: what a reader of its numbers should know.
    """

    at: str
    site: str = "layers.{layer}"
    q: Weight | None = None
    k: Weight | None = None
    v: Weight | None = None
    o: Weight | None = None
    q_down: Weight | None = None
    k_down: Weight | None = None
    v_down: Weight | None = None
    q_bias: Weight | None = None
    k_bias: Weight | None = None
    v_bias: Weight | None = None
    q_norm: Weight | None = None
    k_norm: Weight | None = None
    q_down_norm: Weight | None = None
    k_down_norm: Weight | None = None
    v_down_norm: Weight | None = None
    q_rotary: Weight | None = None
    k_rotary: Weight | None = None
    rotary: Rotary | None = None
    norm: Norm | None = None
    scale: Expression = "r ** -0.5"
    softcap: Expression | None = None
    rotary_scale: Expression | None = None
    value_scale: Expression = 1
    cross: bool = False
    when: str | None = None
    sizes: Mapping[str, Expression] = field(default_factory=dict)
    unread: str | None = None
    rest: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How one architecture stores its attention.

    Arguments:
        name: the layout's own name.
        types: the `model_type`s of configurations that it fits.
        classes: names of module classes that it fits, qualified or bare; sizes are then the module's attributes.
        keys: configuration keys that tell it where the configuration names no `model_type`.
        sizes: an expression over the configuration for each axis that the shapes alone do not tell.
        attention: its attention modules by name.
        input_first: linear layers store their weights input first, the transpose of `nn.Linear`.
        origin: where the layout was written, for error messages.
    """

    name: str
    types: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    sizes: Mapping[str, Expression] = field(default_factory=dict)
    attention: Mapping[str, AttentionLayout] = field(default_factory=dict)
    input_first: bool = False
    origin: str = "the built-in table"


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
        blocks[key] = {line: value for line, value in merged.items() if value not in ("", {})}
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
        for key in ("at", "site", "unread", "rest", *_WEIGHTS):
            if key in values and not isinstance(values[key], str):
                raise LayoutError(f"the line '{key}' must be text in quotes, not {values[key]!r:.40}")
        for key in _WEIGHTS:
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
    _readable(where, [values.get(key) for key in ("scale", "softcap", "rotary_scale", "value_scale", "when")])
    values["notes"] = _strings(where, values, "notes")
    return AttentionLayout(**values)


def _readable(where: str, expressions: Iterable[Any]) -> None:
    """Say at once, and where, that an expression cannot be read; what it gives is known only with a configuration."""
    for expression in expressions:
        if isinstance(expression, str) and expression:
            try:
                _parse(expression)
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
