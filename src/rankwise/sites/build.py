"""From a layout and the sizes of a model to sites: the only reader of what `Weight` strings mean."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from rankwise.sites.expression import evaluate, names_in
from rankwise.sites.factor import Factor, LayoutError
from rankwise.sites.layout import AttentionLayout, Expression, Layout, Weight
from rankwise.sites.site import AttentionFacts, Gain, Kind, RotaryFacts, Site

Side = Literal["left", "right"]
LATENT = "c"


@dataclass(frozen=True, kw_only=True)
class Place:
    """One attention module that a layout was found to fit.

    Arguments:
        layout, block: the table entry and its attention block.
        module: the path of the attention module.
        values: the configuration (or the module's attributes) by name, `layer` included.
        shapes: the shapes of all tensors.
        site: the first part of the site names, filled in.
    """

    layout: Layout
    block: AttentionLayout
    module: str
    values: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    site: str
    layer: int | None
    stack: str


def build(place: Place) -> list[Site]:
    """The sites of one attention module: QK, OV, and the decoupled rotary QK where there is one."""
    values, sizes = _sizes(place)
    block = place.block
    sites = []
    if block.q and block.k:
        chain = [("q_down", block.q_down), ("q", block.q), ("k", block.k), ("k_down", block.k_down)]
        sites.append(_site(place, "qk", place.site, chain, values, sizes))
    if block.q_rotary and block.k_rotary:
        chain = [("q_down", block.q_down), ("q_rotary", block.q_rotary), ("k_rotary", block.k_rotary)]
        sites.append(_site(place, "qk", f"{place.site}.rotary", chain, values, sizes))
    if block.o and block.v:
        chain = [("o", block.o), ("v", block.v), ("v_down", block.v_down)]
        sites.append(_site(place, "ov", place.site, chain, values, sizes))
    return sites


def parameters(place: Place) -> dict[str, str]:
    """The parameter of each weight of the block by role, whether it exists or not."""
    roles = ("q", "k", "v", "o", "q_down", "k_down", "v_down", "q_rotary", "k_rotary")
    weights = {role: getattr(place.block, role) for role in roles}
    return {role: _parameter(place, weight) for role, weight in weights.items() if weight is not None}


def _sizes(place: Place) -> tuple[Mapping[str, Any], dict[str, int]]:
    sizes: dict[str, int] = {}
    values = ChainMap(sizes, {**place.values, **_stored_rows(place)})
    expressions = {**place.layout.sizes, **place.block.sizes}
    # An empty text takes a size of the layout away: in this block the shape tells it.
    for axis, expression in _in_order({axis: each for axis, each in expressions.items() if each != ""}):
        size = evaluate(expression, values)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise LayoutError(f"layout '{place.layout.name}' makes the size of '{axis}' {size!r} from '{expression}'")
        sizes[axis] = size
    return values, sizes


def _in_order(expressions: Mapping[str, Expression]) -> list[tuple[str, Expression]]:
    """The sizes, each after those that its expression names: whoever extends a layout need not mind their order."""
    ready: dict[str, Expression] = {}
    while len(ready) < len(expressions):
        pending = {axis for axis in expressions if axis not in ready}
        free = [axis for axis in pending if not (names_in(expressions[axis]) & pending) - {axis}]
        # Sizes that name each other cannot be ordered; the first one then finds no value and says so.
        ready |= {axis: expressions[axis] for axis in expressions if axis in (free or pending) and axis in pending}
    return list(ready.items())


def _stored_rows(place: Place) -> dict[str, int]:
    """The length of the first stored axis of each weight, as `q_rows`, `k_rows`, …: no configuration need say it."""
    stored = parameters(place).items()
    return {f"{role}_rows": place.shapes[name][0] for role, name in stored if name in place.shapes}


def _site(
    place: Place,
    kind: Kind,
    prefix: str,
    chain: list[tuple[str, Weight | None]],
    values: Mapping[str, Any],
    sizes: dict[str, int],
) -> Site:
    roles = [(role, weight) for role, weight in chain if weight is not None]
    present = {role for role, _ in roles}
    # The query's (or the output's) own order of the head axes numbers the heads.
    order: dict[str, None] = {}
    for _, weight in roles:
        order.update(dict.fromkeys(_head_axes(weight, sizes)))
    batch = list(order)
    factors: list[Factor] = []
    biases: list[Factor | None] = []
    shifts: list[Factor | None] = []
    gains: list[Gain | None] = []
    for role, weight in roles:
        side: Side = "left" if role[0] in "qo" else "right"
        factors.append(_factor(place, weight, batch, side, values, sizes))
        gains.append(_gain(place, role, batch, side, values, sizes))
        shifts.append(_declared(place, f"{role}_shift", batch, side, values, sizes))
        if role.endswith("down") or f"{role}_down" in present or (role == "q_rotary" and "q_down" in present):
            biases.append(None)
        else:
            biases.append(_bias(place, role, weight, batch, side, values, sizes))
    shapes = [factor.shape(place.shapes[factor.parameter]) for factor in factors]
    _chained(factors, shapes)
    extents = {axis: max(shape[position] for shape in shapes) for position, axis in enumerate(batch)}
    facts = _facts(place, kind, prefix, values, shapes[1][-1] if kind == "ov" else _inner(roles, shapes))
    facts = replace(facts, query_factors=sum(role.startswith("q") for role, _ in roles)) if kind == "qk" else facts
    return Site(
        name=f"{prefix}.{kind}",
        kind=kind,
        factors=tuple(factors),
        batch=tuple(extents.items()),
        shape=(*extents.values(), shapes[0][-2], shapes[-1][-1]),
        layer=place.layer,
        stack=place.stack,
        biases=tuple(biases),
        shifts=tuple(shifts) if any(shifts) else (),
        gains=tuple(gains),
        attention=facts,
        scaling=float(evaluate(place.block.value_scale, values)) if kind == "ov" else 1.0,
        layout=place.layout.name,
        notes=_notes(place, kind, facts),
    )


def _inner(roles: list[tuple[str, Weight]], shapes: list[Any]) -> int:
    """The head size: the columns of the last factor on the query's side."""
    queries = [shape for (role, _), shape in zip(roles, shapes, strict=True) if role.startswith("q")]
    return queries[-1][-1]


def _facts(place: Place, kind: Kind, prefix: str, values: Mapping[str, Any], inner: int) -> AttentionFacts:
    block = place.block
    values = ChainMap({"r": inner}, dict(values))
    rotary = None
    decoupled = block.q_rotary is not None and not prefix.endswith(".rotary")
    if kind == "qk" and block.rotary is not None and not decoupled:
        rotated = evaluate(block.rotary.rotated, values)
        start = evaluate(block.rotary.start, values)
        pairs = evaluate(block.rotary.pairs, ChainMap({"half": "half", "interleaved": "interleaved"}, values))
        if pairs not in ("half", "interleaved"):
            raise LayoutError(f"rotary pairs are half or interleaved; '{block.rotary.pairs}' makes them {pairs!r:.40}")
        if rotated:
            rotary = RotaryFacts(pairs, int(rotated), int(start or 0))
    own_scale = block.rotary_scale if prefix.endswith(".rotary") else None
    scale = evaluate(own_scale if own_scale is not None else block.scale, values)
    softcap = evaluate(block.softcap, values) if block.softcap is not None else None
    norm = block.norm if kind == "qk" else None
    if norm is not None and norm.when is not None and not evaluate(norm.when, values):
        norm = None
    owners = {role: _parameter(place, weight) for role in "qkv" if (weight := _first(block, role)) is not None}
    return AttentionFacts(
        module=place.module,
        inputs={role: name.rpartition(".")[0] for role, name in owners.items()},
        scale=float(scale),
        softcap=float(softcap) if softcap else None,
        rotary=rotary,
        norm=norm,
        norm_eps=float(evaluate(norm.eps, values) or 0.0) if norm else 0.0,
        norm_offset=float(evaluate(norm.offset, values) or 0.0) if norm else 0.0,
        latent_eps=float(evaluate(block.latent_eps, values)),
        cross=block.cross,
        model_type=values.get("model_type"),
    )


def _first(block: AttentionLayout, role: str) -> Weight | None:
    """The weight that meets the module's input first: the latent projection where there is one."""
    return getattr(block, f"{role}_down") or getattr(block, role)


def _notes(place: Place, kind: Kind, facts: AttentionFacts) -> tuple[str, ...]:
    sides = "qk" if kind == "qk" else "v"
    notes = list(place.block.notes)
    if facts.rotary is not None:
        notes.append("rotary: the product is a family over offsets; this is the one at offset 0")
    if facts.norm is not None:
        notes.append("queries and keys are normalized: the scale of this product means nothing")
        if any(_has_bias(place, f"{side}_norm") for side in sides):
            notes.append("their normalization adds a bias behind the product, which is not in it")
    if any(getattr(place.block, f"{side}_down_norm") for side in sides):
        notes.append(
            "a normalization stands between the latent factors: the product holds up to a scale for each token"
        )
    if any(_has_bias(place, f"{side}_down") for side in sides):
        notes.append("the latent projection has a bias, which this product leaves out")
    if facts.model_type is None and place.layout.types:
        notes.append(f"the configuration names no model type: read as {place.layout.types[0]}")
    return tuple(notes)


def _has_bias(place: Place, line: str) -> bool:
    weight: Weight | None = getattr(place.block, line)
    return weight is not None and f"{_parameter(place, weight).removesuffix('weight')}bias" in place.shapes


def _parameter(place: Place, weight: Weight) -> str:
    base = f"{place.module}.{weight.name}" if place.module else weight.name
    # An adapter wraps the layer it adapts and keeps it as its `base_layer`.
    stored = (f"{base}.weight", f"{base}.base_layer.weight")
    return next((name for name in stored if name in place.shapes), base)


def _head_axes(weight: Weight, sizes: Mapping[str, int]) -> list[str]:
    axes = [axis for group in weight.groups for axis in group]
    axes = [weight.part_axis if axis == "part" and weight.part_axis else axis for axis in axes]
    return [axis for axis in axes if axis in sizes and axis not in ("r", "part")]


def _width(weight: Weight, sizes: Mapping[str, int]) -> str | None:
    """The axis that is neither a head axis nor the head size: what the weight reads or writes."""
    named = {"r", "part", *sizes}
    free = [axis for group in weight.groups for axis in group if axis not in named]
    return free[0] if free else None


def _target(weight: Weight, batch: list[str], matrix: list[str], sizes: Mapping[str, int]) -> str:
    present = _head_axes(weight, sizes)
    axes = [axis if axis in present else "1" for axis in batch] + matrix
    axes = ["part" if weight.part_axis is not None and axis == weight.part_axis else axis for axis in axes]
    if weight.part is not None and weight.part_axis is None:
        axes.insert(0, "part")
    return " ".join(axes)


def _clauses(
    place: Place, weight: Weight, values: Mapping[str, Any]
) -> tuple[tuple[int, int] | None, int | tuple[int, int] | None]:
    rows = take = None
    if weight.rows is not None:
        first, last = (int(evaluate(bound, values)) for bound in weight.rows)
        rows = (first, last)
    if weight.part is not None:
        first, last = weight.part
        start = int(evaluate(first, values))
        take = start if last is None else (start, int(evaluate(last, values)))
    return rows, take


def _factor(
    place: Place, weight: Weight, batch: list[str], side: Side, values: Mapping[str, Any], sizes: Mapping[str, int]
) -> Factor:
    width = _width(weight, sizes)
    inner = "r"
    if width is not None and not any("r" in group or weight.part_axis == "r" for group in weight.groups):
        # A latent projection has no head size: it leads from the model's width to the latent one.
        free = [axis for group in weight.groups for axis in group if axis not in sizes]
        inner = LATENT
        width = next((axis for axis in free if axis != LATENT), None)
    if width is None:
        raise LayoutError(f"'{weight.name}: {weight.axes}' in layout '{place.layout.name}' has no axis for the width")
    matrix = [width, inner] if side == "left" else [inner, width]
    rows, take = _clauses(place, weight, values)
    known = {axis: size for axis, size in sizes.items() if axis != "r" or weight.part_axis != "r"}
    pattern = f"{weight.axes} -> {_target(weight, batch, matrix, sizes)}"
    return Factor(_parameter(place, weight), pattern, _fitting(weight, known), rows=rows, take=take)


def _fitting(weight: Weight, sizes: Mapping[str, int]) -> dict[str, int]:
    axes = {axis for group in weight.groups for axis in group}
    return {axis: size for axis, size in sizes.items() if axis in axes}


def _vector(
    place: Place,
    weight: Weight,
    batch: list[str],
    side: Side,
    inner: str,
    values: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> Factor:
    """A bias or a gain over the inner axis, shaped to stand beside (or multiply) its factor."""
    matrix = ["1", inner] if side == "left" else [inner, "1"]
    rows, take = _clauses(place, weight, values)
    pattern = f"{weight.axes} -> {_target(weight, batch, matrix, sizes)}"
    known = {axis: size for axis, size in sizes.items() if axis != "r" or weight.part_axis != "r"}
    return Factor(_parameter(place, weight), pattern, _fitting(weight, known), rows=rows, take=take)


def _bias(
    place: Place,
    role: str,
    weight: Weight,
    batch: list[str],
    side: Side,
    values: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> Factor | None:
    if role == "o":  # the output's bias is added after the product
        return None
    if getattr(place.block, f"{role}_bias", None) is not None:
        return _declared(place, f"{role}_bias", batch, side, values, sizes)
    parameter = _parameter(place, weight)
    if not parameter.endswith(".weight"):
        return None
    stored = parameter.removesuffix("weight") + "bias"
    if stored not in place.shapes:
        return None
    axes = [group for group in weight.groups if group != [_width(weight, sizes)]]
    text = " ".join(f"({' '.join(group)})" if len(group) > 1 else group[0] for group in axes)
    bias = replace(weight, name=f"{weight.name}.bias", axes=text)
    return _vector(place, bias, batch, side, "r", values, sizes)


def _declared(
    place: Place, line: str, batch: list[str], side: Side, values: Mapping[str, Any], sizes: Mapping[str, int]
) -> Factor | None:
    """The bias that a line of the block declares, or None without the line or the parameter."""
    bias: Weight | None = getattr(place.block, line, None)
    if bias is None or _parameter(place, bias) not in place.shapes:
        return None
    return _vector(place, bias, batch, side, "r", values, sizes)


def _gain(
    place: Place, role: str, batch: list[str], side: Side, values: Mapping[str, Any], sizes: Mapping[str, int]
) -> Gain | None:
    weight: Weight | None = getattr(place.block, f"{role}_norm", None)
    if weight is None or _parameter(place, weight) not in place.shapes:
        return None
    norm = place.block.norm
    offset = float(evaluate(norm.offset, values) or 0.0) if norm is not None else 0.0
    inner = LATENT if role.endswith("down") else "r"
    return Gain(_vector(place, weight, batch, side, inner, values, sizes), offset)


def _chained(factors: list[Factor], shapes: list[Any]) -> None:
    for (one, first), (two, second) in zip(
        zip(factors, shapes, strict=True), list(zip(factors, shapes, strict=True))[1:], strict=False
    ):
        if first[-1] != second[-2]:
            raise LayoutError(
                f"{one.parameter} gives {tuple(first)} under '{one.pattern}' and {two.parameter} gives {tuple(second)} "
                f"under '{two.pattern}': {first[-1]} columns meet {second[-2]} rows"
            )
