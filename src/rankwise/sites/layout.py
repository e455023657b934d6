"""What the layout table says of an architecture: where its attention weights lie and how they are stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rankwise.sites.factor import LayoutError

_WEIGHT = re.compile(r"\s*(?P<name>[\w.]+)\s*:\s*(?P<axes>(?=[\s(]*\w)[\w\s()]+?)\s*(?:,(?P<rest>.*))?")
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
    eps: Expression = "rms_norm_eps or norm_eps"
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


WEIGHTS = (
    *("q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "q_norm", "k_norm", "q_rotary", "k_rotary", "q_shift"),
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
        q_shift: a second bias of the queries, with which they meet the keys but not the relative positions.
        q_norm, k_norm, norm: a normalization of queries and keys, and its gains.
        rotary: rotary position embedding of queries and keys.
        scale, softcap: the factor on the logits, and the cap on them.
        rotary_scale: the factor on the decoupled rotary part of the logits, where it is another.
        value_scale: a number that the values are multiplied by.
        latent_eps: what the normalization between latent factors adds to a mean square.
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
    q_shift: Weight | None = None
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
    latent_eps: Expression = 1e-6
    cross: bool = False
    when: str | None = None
    sizes: Mapping[str, Expression] = field(default_factory=dict)
    unread: str | None = None
    rest: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for line in WEIGHTS:
            if isinstance(value := getattr(self, line), str):
                object.__setattr__(self, line, Weight.parse(value))


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
    origin: str = "a layout made in Python"
