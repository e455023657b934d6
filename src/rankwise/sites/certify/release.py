"""Which layouts were proved in the release: the table that ships with the package, and what a site is looked up by.

A site is looked up by everything discrete that decides its formula: the model type that governs it, the layout and its
patterns, rotary pairs, normalization, cap, biases and gains, how heads share factors, all parameters of its attention
module, and every switch of the configuration whose name speaks of attention. What was not proved in just this
combination is not claimed, and nothing of a layout that was changed since.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from rankwise.sites.layout import Layout
from rankwise.sites.registry import built_in, is_built_in
from rankwise.sites.site import Site

TABLE = "release.json"
# Lines of a layout that no number depends on.
_WORDS = ("site", "unread", "rest", "notes")
_SWITCH = re.compile(
    r"attn|attention|_att_|qk|qkv|query|key|kv|bias|rope|rotary|alibi|position|multi_query|new_decoder|sink|gate|softcap|cap$|"
    r"scale|norm"
)
# Names that speak of attention and mean sizes, angles (of which `rope` is told apart), dropout, precision, other
# layers, or what happens before and behind the attention. Nobody looks at these: in doubt a name does not stand here.
_ASIDE = re.compile(
    r"drop|implementation|fp32|output(?!_gate)|eps|init|label|hidden_act|activation|id2|token|parallel|mlp|moe|router|expert|vocab|"
    r"max_|num_|_size|_dim|layers?$|types$|mamba|ssm|conv|linear_(?!attention)|embedding_scale|scale_embedding|pre_norm|post_norm|"
    r"normalize_before|final|key_query_map|tie_|sliding|window|_freq|interpolat|image_|_step|key_value_proj|residual|topk|"
    r"is_gated_act|(?<!qk_)norm_type|rope_(parameters|scaling|theta)$|classifier|lm_head|projector|backbone|loss|pool_|"
    r"logit_scale|embed_?norm|batch_norm|patch_norm|pixel|feat_|stable|attn_impl|partial_rotary|"
    r"rotary_(dim|pct|percentage|ndims|base|emb_base|embedding_base)"
)
_CAP = re.compile(r"softcap|cap$|clip")
# Kinds of rotary embedding that change angles and nothing else; others multiply the logits by a factor of their own.
_ONLY_ANGLES = ("default", "linear", "dynamic", "llama3", "mrope", "proportional")
_EMPTY = ContextVar("empty_table", default=False)
_BUFFER = re.compile(r"(inv_freq|masked_bias|position_ids|relative_position_index|num_batches_tracked)$")


def marked(
    site: Site,
    values: Mapping[str, Any],
    names: Iterable[str],
    shapes: Mapping[str, tuple[int, ...]],
    layout: Layout,
) -> Site:
    """The site with its signature, and with `certified="release"` where the release proved just this signature.

    Arguments:
        site: an attention site.
        values: the configuration that governs its module (or the module's attributes).
        names: the parameters of its module.
        shapes: the shapes of all tensors of the source.
        layout: its layout; nobody proved one that does not ship, even under the same name.
    """
    known = None if _EMPTY.get() else _table().get(type_of(site, layout))
    facts = switches(values)
    if known is not None:
        # What the type's code never reads decides nothing; what is not said is as the type has it by default.
        said = {key: fact for key, fact in facts.items() if key in known.defaults or key.split(".")[0] in known.reads}
        facts = {**known.defaults, **said}
    mark = signature(site, facts, names, shapes)
    proved = known is not None and mark in known.proved and is_built_in(layout) and layout.name in unchanged()
    assert site.attention is not None
    return replace(site, attention=replace(site.attention, signature=mark), certified="release" if proved else "no")


def signature(site: Site, facts: Mapping[str, Any], names: Iterable[str], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """A short digest of everything discrete that decides a site's formula."""
    described = json.dumps({**_description(site, names, shapes), "switches": facts}, sort_keys=True, default=str)
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def type_of(site: Site, layout: Layout | None = None) -> str:
    """What the table files a site under: its model type; where no configuration names one, the first of its layout."""
    model_type = site.attention.model_type if site.attention is not None else None
    first = layout.types[0] if layout is not None and layout.types else None
    return model_type or first or f"layout:{site.layout}"


def switches(values: Mapping[str, Any]) -> dict[str, Any]:
    """The discrete facts of a configuration that may change an attention's formula: switches, choices, what is given.

    >>> switches({"attention_bias": True, "hidden_size": 64, "rope_theta": 1e4, "attn_logit_softcapping": None})
    {'attention_bias': True, 'attn_logit_softcapping': None, 'rope': 'angles'}
    """
    facts: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(key, str) or not is_switch(key):
            continue
        if isinstance(value, str) and "|" in value:
            value = value.split("|")  # DeBERTa's own notation for a list
        if value is None or isinstance(value, bool | str):
            facts[key] = value
        elif isinstance(value, int | float):
            # Of a number that a layout reads, its proof covers every value; that it is given at all may be a switch.
            facts[key] = "given" if value or not _CAP.search(key) else None
        elif isinstance(value, Mapping):
            facts |= {f"{key}.{inner}": fact for inner, fact in switches(value).items() if inner != "rope"}
        elif isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
            facts[key] = sorted(set(value))
    facts["rope"] = _rope(values.get("rope_parameters") or values.get("rope_scaling"))
    return facts


def is_switch(key: str) -> bool:
    """Whether a configuration key of this name may change an attention's formula."""
    return bool(_SWITCH.search(key)) and not _ASIDE.search(key)


def _rope(rope: Any) -> str:
    """What a rotary embedding does beside turning; some models have one for each type of layer."""
    if not isinstance(rope, Mapping):
        return "angles"
    inner = [_rope(each) for each in rope.values() if isinstance(each, Mapping)]
    kind = rope.get("rope_type", rope.get("type")) or "default"
    own = "angles" if kind in _ONLY_ANGLES else f"{kind}{', scaled' if rope.get('mscale_all_dim') else ''}"
    return " and ".join(sorted({own, *inner}))


def _description(site: Site, names: Iterable[str], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    facts = site.attention
    assert facts is not None
    start = f"{facts.module}." if facts.module else ""

    def relative(name: str) -> str:
        return re.sub(r"\d+", "#", name.removeprefix(start).replace(".base_layer", ""))

    def vector(factor: Any) -> Any:
        return None if factor is None else [relative(factor.parameter), factor.pattern]

    inner = site.factors[facts.query_factors - 1 if site.kind == "qk" else 0]
    size = inner.shape(shapes[inner.parameter])[-1]
    rotary, norm = facts.rotary, facts.norm
    return {
        "layout": site.layout,
        "kind": site.kind + (".rotary" if site.name.endswith(".rotary.qk") else ""),
        "factors": [[relative(f.parameter), f.pattern, f.rows is None, f.take is None] for f in site.factors],
        "biases": [vector(bias) for bias in site.biases],
        "gains": [None if gain is None else [*vector(gain.factor), gain.offset] for gain in site.gains],
        "rotary": None if rotary is None else [rotary.pairs, rotary.rotated == size, rotary.start == 0],
        "norm": None if norm is None else [norm.kind, norm.over, norm.after_rotary, facts.norm_offset],
        "softcap": facts.softcap is not None,
        "cross": facts.cross,
        "shared": [[axis, extent > 1] for axis, extent in site.batch],
        "parameters": sorted({relative(name) for name in names if not _is_buffer(name, shapes[name])}),
    }


def _is_buffer(name: str, shape: tuple[int, ...]) -> bool:
    """Masks and frequencies that older checkpoints hold beside the parameters."""
    return "lora_" in name or bool(_BUFFER.search(name)) or (name.endswith(".bias") and len(shape) > 2)


@dataclass(frozen=True)
class Entry:
    """What the release knows of one model type.

    Arguments:
        defaults: the switches of its configuration as transformers fills them in.
        reads: switches that its code reads besides.
        proved: the signatures that passed.
    """

    defaults: Mapping[str, Any]
    reads: frozenset[str]
    proved: frozenset[str]


@contextmanager
def empty_table() -> Iterator[None]:
    """Inside, nothing counts as proved, so that signatures are what the next table is made of."""
    before = _EMPTY.set(True)
    try:
        yield
    finally:
        _EMPTY.reset(before)


def fingerprint(layout: Layout) -> str:
    """A digest of everything in a layout that decides numbers: not its words, and not which types it fits."""
    blocks = {
        key: {line: value for line, value in asdict(block).items() if line not in _WORDS}
        for key, block in layout.attention.items()
    }
    described = json.dumps([layout.input_first, dict(layout.sizes), blocks], sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def shipped() -> Mapping[str, Any]:
    """The table of the release as it is stored: versions, layouts' fingerprints, certificates, a line for each type."""
    page = files("rankwise.sites").joinpath(TABLE)
    return json.loads(page.read_text(encoding="utf-8")) if page.is_file() else {"layouts": {}, "types": {}, "lines": []}


@lru_cache(maxsize=1)
def unchanged() -> frozenset[str]:
    """The names of the built-in layouts that are as they were when they were proved."""
    proved = shipped()["layouts"]
    return frozenset(layout.name for layout in built_in()[0] if proved.get(layout.name) == fingerprint(layout))


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Entry]:
    return {
        name: Entry(row["defaults"], frozenset(row["reads"]), frozenset(row["proved"]))
        for name, row in shipped()["types"].items()
    }
