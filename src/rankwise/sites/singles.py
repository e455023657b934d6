"""Everything that is not an attention product: adapters, factorized layers, every other matrix as a product of one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from rankwise.errors import UserError
from rankwise.sites.factor import Factor
from rankwise.sites.site import Kind, Site

# One component of a name: an attention module, or a projection of queries, keys and values.
_ATTENTION = re.compile(
    r"\w*(attn|attention|mha)s?(_(?!(layer_?)?norm|hc|\w*conv|bias)\w+)?|(to_|w|c_|self_)?[qkv](_?proj|_?lin)?(_global)?|qkv(_?proj)?|wqkv|to_qkv"
    r"|query|key|value|(query|key|value)_(global|proj|projection|protein|structure|msa)|query_key(_value)?|c_attn"
    r"|in_proj_weight",
    re.IGNORECASE,
)
_FEED_FORWARD = re.compile(r"mlp|ffn?|feed_?forward|linear\d|fc\d|bottleneck", re.IGNORECASE)
_EMBEDDING = re.compile(r"(embed|wte|wpe|lm_head|shared|position|token_type|emb)(\b|_|s|d|i)", re.IGNORECASE)
_EXPERTS = re.compile(r"expert|moe", re.IGNORECASE)
_LAYER = re.compile(r"\.(\d+)\.")
_CHAIN = re.compile(r"(?P<layer>(?:.*\.)?)(?P<list>factors|kernel_factors)\.(?P<position>\d+)")
_CORES = re.compile(r"(?:.*\.)?(?P<form>cp|tucker|tensor_train)_cores\.\d+")
_ADAPTER = re.compile(r"(?P<base>.+)\.lora_(?P<embedding>embedding_)?B(?:\.(?P<name>(?!weight$)[^.]+))?(?:\.weight)?")


def is_matrix(shape: tuple[int, ...]) -> bool:
    """Whether a parameter holds matrices: at least two axes longer than one."""
    return sum(size > 1 for size in shape) >= 2


def looks_like_attention(name: str) -> bool:
    """Whether a parameter's name says that it belongs to attention."""
    components = name.split(".")
    if any(_FEED_FORWARD.fullmatch(component) for component in components):
        return False
    return any(_ATTENTION.fullmatch(component) for component in components)


def core_of(name: str) -> str | None:
    """The tensor form of which a parameter is a core, told by its name, or None.

    >>> core_of("layers.0.up.tensor_train_cores.1"), core_of("layers.0.up.weight")
    ('tensor train', None)
    """
    match = _CORES.fullmatch(name)
    return None if match is None else match["form"].replace("_", " ")


def single(name: str, shape: tuple[int, ...]) -> Site:
    """A matrix parameter as a site of one factor: experts stay stacks, kernels become `out x (in, window)`."""
    layer = _LAYER.search(f".{name}")
    inside = int(layer.group(1)) if layer else None
    batch: tuple[tuple[str, int], ...] = ()
    if len(shape) == 2:
        kind: Kind = "embed" if _EMBEDDING.search(name) else ("mlp" if inside is not None else "matrix")
        pattern, extent = "a b -> a b", shape
    elif len(units := [size for size in shape if size > 1]) == 2:
        kind = "embed" if _EMBEDDING.search(name) else "matrix"
        axes = ["a" if size > 1 else "1" for size in shape]
        axes[len(axes) - 1 - axes[::-1].index("a")] = "b"
        pattern, extent = f"{' '.join(axes)} -> a b", tuple(units)
    elif len(shape) == 3 and _EXPERTS.search(name):
        kind, pattern, extent = "mlp", "e a b -> e a b", shape
        batch = (("expert", shape[0]),)
    else:
        kind = "conv"
        window = "cdefg"[: len(shape) - 2]
        pattern = f"a b {' '.join(window)} -> a (b {' '.join(window)})"
        inputs = 1
        for size in shape[1:]:
            inputs *= size
        extent = (shape[0], inputs)
    return Site(
        name=f"{name.removesuffix('.weight')}.{kind}",
        kind=kind,
        factors=(Factor(name, pattern),),
        batch=batch,
        shape=extent,
        layer=inside,
        layout="single matrix",
    )


def factorized(shapes: Mapping[str, tuple[int, ...]]) -> list[Site]:
    """Every factorized layer: `X.factors.N` is the site `X.linear`, `X.kernel_factors.N` the site `X.conv`.

    >>> [site] = factorized({"up.factors.0": (8, 2), "up.factors.1": (2, 6)})
    >>> site.name, site.shape, site.parameters
    ('up.linear', (8, 6), ('up.factors.0', 'up.factors.1'))
    """
    chains: dict[tuple[str, str], dict[int, str]] = {}
    for name, shape in shapes.items():
        if len(shape) == 2 and (match := _CHAIN.fullmatch(name)) is not None:
            chains.setdefault((match["layer"], match["list"]), {})[int(match["position"])] = name
    sites = []
    for (at, list_name), members in chains.items():
        names = [members[position] for position in sorted(members)]
        # Other lists of tensors may have the same name: only what multiplies from end to end is a product.
        if len(names) < 2 or sorted(members) != list(range(len(names))):
            continue
        if any(shapes[one][1] != shapes[two][0] for one, two in pairwise(names)):
            continue
        layer = _LAYER.search(f".{names[0]}")
        kind: Kind = "linear" if list_name == "factors" else "conv"
        sites.append(
            Site(
                name=f"{at}{kind}",
                kind=kind,
                factors=tuple(Factor(name, "a b -> a b") for name in names),
                shape=(shapes[names[0]][0], shapes[names[-1]][1]),
                layer=int(layer.group(1)) if layer else None,
                layout="factorized layer",
            )
        )
    return sites


def adapters(shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any] | None = None) -> list[Site]:
    """Every LoRA pair `B A` among the names; `config` is the adapter's, for its scaling.

    The update is `scaling B A` with scaling `alpha / r` (`alpha / sqrt(r)` where rank stabilization is on).
    """
    sites = []
    for name, shape in shapes.items():
        match = _ADAPTER.fullmatch(name)
        if match is None or len(shape) != 2:
            continue
        head, _, tail = name.rpartition("B" if match["name"] is None else f"B.{match['name']}")
        partner = f"{head}A{'' if match['name'] is None else '.' + match['name']}{tail}"
        if partner not in shapes:
            continue
        rank = shape[1]
        layer = _LAYER.search(f".{name}")
        adapter = f".{match['name']}" if match["name"] not in (None, "default") else ""
        base = match["base"].removeprefix("base_model.model.")
        magnitude = [each for each in shapes if each.startswith(f"{match['base']}.lora_magnitude_vector")]
        notes = ["DoRA: the update also rescales each row by its magnitude vector"] if magnitude else []
        if not config:
            notes.append("no adapter configuration says alpha: the update is taken as B A, not scaled")
        sites.append(
            Site(
                name=f"{base}{adapter}.lora",
                kind="lora",
                factors=(Factor(name, "a r -> a r"), Factor(partner, "r b -> r b")),
                shape=(shape[0], shapes[partner][1]),
                layer=int(layer.group(1)) if layer else None,
                scaling=_scaling(config, rank, base),
                layout="LoRA",
                notes=tuple(notes),
            )
        )
    return sites


def _scaling(config: Mapping[str, Any] | None, rank: int, base: str) -> float:
    """What PEFT multiplies the update of a module by."""
    if not config:
        return 1.0
    patterns = config.get("alpha_pattern")
    alpha = config.get("lora_alpha")
    for pattern, value in patterns.items() if isinstance(patterns, Mapping) else ():
        # PEFT takes the first pattern that the end of the module's name matches.
        if _matches(pattern, base):
            alpha = value
            break
    alpha = rank if alpha is None else alpha
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise UserError(f"the adapter's configuration gives {base} the lora_alpha {alpha!r}: a number was expected")
    return float(alpha) / (rank**0.5 if config.get("use_rslora") else rank)


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.match(rf"(.*\.)?({pattern})$", name) is not None
    except re.error:
        return False
