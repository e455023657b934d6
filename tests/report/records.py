"""Scan records for the page's tests: real spectra of random and structured factors, as `docs/scan-format.md` says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

Json = dict[str, Any]

MEASURES: dict[str, tuple[str, str, Callable[[Tensor], Tensor]]] = {
    "effective_rank": (
        "effective rank",
        "exp(-sum p_i ln p_i), p_i = s_i / sum s",
        lambda s: torch.special.entr(s / s.sum(-1, keepdim=True)).sum(-1).exp(),
    ),
    "stable_rank": ("stable rank", "sum s_i^2 / s_1^2", lambda s: s.square().sum(-1) / s[..., 0].square()),
    "pseudo_rank": (
        "pseudo-rank",
        "least k with s_1 + ... + s_k >= 0.95 sum s_i, over the number of values",
        lambda s: (s.cumsum(-1) < 0.95 * s.sum(-1, keepdim=True)).sum(-1).add(1).clamp_max(s.shape[-1]) / s.shape[-1],
    ),
    "nuclear_norm": ("nuclear norm", "sum s_i", lambda s: s.sum(-1)),
    "frobenius_norm": ("Frobenius norm", "sqrt(sum s_i^2)", lambda s: s.square().sum(-1).sqrt()),
    "operator_norm": ("operator norm", "s_1", lambda s: s[..., 0]),
}
NORMS_ONLY = ("frobenius_norm", "operator_norm")
RELATIVE_ERROR = 1e-9


def gaussian(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def with_decay(factor: Tensor, decay: float) -> Tensor:
    """A factor `[..., m, r]` whose columns shrink geometrically: training lowers the rank."""
    return factor * torch.exp(-decay * torch.arange(factor.shape[-1], dtype=torch.float64))


def measured(values: Tensor, names: Sequence[str]) -> Json:
    return {name: [float(MEASURES[name][2](values)), float(values[0]) * RELATIVE_ERROR] for name in names}


@lru_cache(maxsize=64)
def null(widths: tuple[int, ...], draws: int = 24) -> Json:
    """The null of Gaussian factors of these widths, drawn in full."""
    factors = [gaussian(draws, *pair, seed=seed) for seed, pair in enumerate(pairwise(widths))]
    product = factors[0]
    for factor in factors[1:]:
        product = product @ factor
    values = torch.linalg.svdvals(product)[:, : min(widths)]
    largest = values[:, 0]
    found = {name: function(values) for name, (_, _, function) in MEASURES.items()}
    answer: Json = {
        "values": values.mean(0).tolist(),
        "low": values.quantile(0.01, dim=0).tolist(),
        "high": values.quantile(0.99, dim=0).tolist(),
        "edge": float(largest.mean() + 3.53 * largest.std()),
        "relative_gap": None,
        "imbalance": None,
        "measures": {name: [float(one.mean()), float(one.std())] for name, one in found.items()},
        "draws": draws,
    }
    if len(factors) == 2:
        half_sum = sum(factor.square().sum((-2, -1)) for factor in factors) / 2
        gaps = 1 - values.sum(-1) / half_sum
        left, right = factors[0].mT @ factors[0], factors[1] @ factors[1].mT
        mean_square = (left.square().sum((-2, -1)) + right.square().sum((-2, -1))) / 2
        imbalances = ((left - right).square().sum((-2, -1)) / mean_square).sqrt()
        answer["relative_gap"] = [float(gaps.mean()), float(gaps.std())]
        answer["imbalance"] = [float(imbalances.mean()), float(imbalances.std())]
    return answer


def balance(left: Tensor, right: Tensor) -> Json:
    half_sum = float(left.square().sum() + right.square().sum()) / 2
    nuclear = float(torch.linalg.svdvals(left @ right).sum())
    grams = left.mT @ left, right @ right.mT
    mean_square = (grams[0].square().sum() + grams[1].square().sum()) / 2
    return {
        "half_sum": half_sum,
        "nuclear": nuclear,
        "gap": half_sum - nuclear,
        "relative": (half_sum - nuclear) / half_sum,
        "imbalance": float(((grams[0] - grams[1]).square().sum() / mean_square).sqrt()),
        "error": half_sum * RELATIVE_ERROR,
    }


def rotary_pairs(left: Tensor, right: Tensor) -> Json:
    """The balance summed over frequency pairs, the rotated dimensions lying in two halves."""
    half = left.shape[-1] // 2
    blocks = [balance(left[:, [i, i + half]], right[[i, i + half]]) for i in range(half)]
    half_sum, pair_sum = (sum(block[key] for block in blocks) for key in ("half_sum", "nuclear"))
    gap = half_sum - pair_sum
    return {"half_sum": half_sum, "pair_sum": pair_sum, "gap": gap, "relative": gap / half_sum}


@dataclass(frozen=True)
class Stack:
    """The two factors of every head of a site, `[heads, m, r]` and `[heads, r, n]`, and what its record says."""

    name: str
    kind: str = field(kw_only=True)
    layer: int | None = field(kw_only=True)
    left: Tensor = field(kw_only=True)
    right: Tensor = field(kw_only=True)
    stack: str = ""
    certified: str = "here"
    rotary: bool = False
    groups: int | None = None
    failures: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def record(self) -> Json:
        heads, m, r = self.left.shape
        widths = (m, r, self.right.shape[-1])
        return {
            "name": self.name,
            "kind": self.kind,
            "layer": self.layer,
            "stack": self.stack,
            "batch": [["head", heads]],
            "widths": list(widths),
            "orientation": "left index: query, right index: key" if self.kind == "qk" else "left: output, right: input",
            "layout": "toy",
            "certified": self.certified,
            "parameters": [f"{self.name}.left", f"{self.name}.right"],
            "notes": list(self.notes),
            "rotary": {"pairs": "half", "rotated": r, "start": 0} if self.rotary else None,
            "heads": [self.head(index) for index in range(heads)],
            "group": self.group(),
            "null": null(widths),
        }

    def head(self, index: int) -> Json:
        left, right, r = self.left[index], self.right[index], self.left.shape[-1]
        common: Json = {"head": index, "method": "gram64", "failure": self.failures.get(index), "pairs": None}
        if index in self.failures:
            return common | {"method": None, "null_scale": None, "measures": {}, "balance": None}
        values = torch.linalg.svdvals(left @ right)[:r]
        return common | {
            "values": values.tolist(),
            "errors": (values[0] * RELATIVE_ERROR).expand(len(values)).tolist(),
            "null_scale": float(left.square().mean().sqrt() * right.square().mean().sqrt()),
            "measures": measured(values, tuple(MEASURES)),
            "balance": balance(left, right),
            "pairs": rotary_pairs(left, right) if self.rotary else None,
        }

    def group(self) -> list[Json] | None:
        """One entry for each group of heads that share a right factor."""
        if self.groups is None:
            return None
        size = len(self.left) // self.groups
        found = []
        for index in range(self.groups):
            left = self.left[index * size : (index + 1) * size].flatten(0, 1)
            one = balance(left, self.right[index * size])
            found.append({key: one[key] for key in ("half_sum", "nuclear", "gap", "relative")} | {"null": 0.05})
        return found


def matrix(name: str, *, kind: str, layer: int | None, weight: Tensor, spectrum: bool = False) -> Json:
    """A single matrix: two norms, and its spectrum where it was asked for."""
    values = torch.linalg.svdvals(weight)
    head: Json = {
        "head": 0,
        "method": "qr",
        "failure": None,
        "null_scale": float(weight.square().mean().sqrt()),
        "measures": measured(values, tuple(MEASURES) if spectrum else NORMS_ONLY),
        "balance": None,
        "pairs": None,
    }
    if spectrum:
        head |= {"values": values.tolist(), "errors": [float(values[0]) * RELATIVE_ERROR] * len(values)}
    return {
        "name": name,
        "kind": kind,
        "layer": layer,
        "stack": "",
        "batch": [],
        "widths": list(weight.shape),
        "orientation": "as stored",
        "layout": "single",
        "certified": "no",
        "parameters": [name],
        "notes": [],
        "rotary": None,
        "heads": [head],
        "group": None,
        "null": null(tuple(weight.shape)) if spectrum else None,
    }


def scan(sites: Sequence[Json], **changes: object) -> Json:
    """A whole record around its sites."""
    record: Json = {
        "format": "rankwise-scan",
        "version": 1,
        "rankwise": "0.1.0",
        "created": "2026-01-02T03:04:05Z",
        "source": "models/toy",
        "base": None,
        "step": None,
        "model": {"type": "toy", "config": {"hidden_size": 64, "num_attention_heads": 4}},
        "settings": {
            "method": "auto",
            "tolerance": 1e-6,
            "select": None,
            "device": "cpu",
            "measures": list(MEASURES),
        },
        "notes": [],
        "complete": True,
        "measures": {
            name: {"title": title, "formula": formula, "meaning": f"What {title} means.", "scales": "norm" in name}
            for name, (title, formula, _) in MEASURES.items()
        },
        "sites": list(sites),
        "unread": [],
        "findings": [],
    }
    assert set(changes) <= set(record), changes
    return record | changes


def attention(
    layer: int,
    *,
    heads: int = 4,
    width: int = 64,
    size: int = 8,
    prefix: str = "layers",
    middle: str = "",
    decay: float = 0.1,
    collapsed: int | None = None,
    dead: int | None = None,
    failed: int | None = None,
    rotary: bool = False,
    groups: int | None = None,
    stack: str = "",
    certified: str = "here",
) -> list[Json]:
    """The QK and OV sites of one layer; heads decay at different speeds, and one may be collapsed, dead or failed."""
    sites = []
    for offset, kind in enumerate(("qk", "ov")):
        seed = 10 * layer + offset
        left = gaussian(heads, width, size, seed=seed, scale=width**-0.5)
        shared = gaussian(groups or heads, width, size, seed=seed + 5, scale=width**-0.5)
        right = shared.repeat_interleave(heads // (groups or heads), 0)
        for head in range(heads):
            speed = decay * (0.2 + head / heads) * (1 + layer / 4)
            left[head] = with_decay(left[head], 6.0 / size if head == collapsed and kind == "qk" else speed)
            right[head] = with_decay(right[head], 6.0 / size if head == collapsed and kind == "qk" else speed)
        if dead is not None:
            left[dead] *= 1e-4
        sites.append(
            Stack(
                f"{prefix}.{layer}{middle}.{kind}",
                kind=kind,
                layer=layer,
                left=left,
                right=right.mT,
                stack=stack,
                certified=certified,
                rotary=rotary and kind == "qk",
                groups=groups,
                failures={failed: "the weights hold NaN"} if failed is not None and kind == "ov" else {},
                notes=("rotary: the spectrum is the content product at offset 0",) if rotary and kind == "qk" else (),
            ).record()
        )
    return sites


def finding(kind: str, site: str, head: int | None, text: str, **evidence: float) -> Json:
    return {"kind": kind, "site": site, "head": head, "text": text, "evidence": evidence}


def transformer(layers: int = 4, heads: int = 4, *, width: int = 64, size: int = 8, **changes: object) -> Json:
    """A decoder with a collapsed, a dead and a failed head, single matrices, unread tensors and findings."""
    sites: list[Json] = []
    for layer in range(layers):
        sites += attention(
            layer,
            heads=heads,
            width=width,
            size=size,
            collapsed=heads - 1 if layer == layers - 1 else None,
            dead=0 if layer == 1 else None,
            failed=heads // 2 if layer == layers // 2 else None,
        )
        for role, shape in (("up", (2 * width, width)), ("down", (width, 2 * width))):
            weight = gaussian(*shape, seed=100 + layer + len(role), scale=0.02 * (layer + 1))
            sites.append(matrix(f"layers.{layer}.mlp.{role}.mlp", kind="mlp", layer=layer, weight=weight))
    embedding = gaussian(256, width, seed=7)
    sites.append(matrix("embeddings.token.embed", kind="embed", layer=None, weight=embedding, spectrum=True))
    last, dead_layer, failed_layer = layers - 1, min(1, layers - 1), layers // 2
    given: Json = {
        "source": "models/toy-decoder",
        "sites": sites,
        "unread": [
            {"parameter": "layers.0.gate.weight", "shape": [8, 64], "reason": "a router: no product of weights"},
            {"parameter": "layers.1.gate.weight", "shape": [8, 64], "reason": "a router: no product of weights"},
            {"parameter": "relative_bias.weight", "shape": [32, 4], "reason": "an additive bias, not a factor"},
        ],
        "findings": [
            finding(
                "collapsed",
                f"layers.{last}.qk",
                heads - 1,
                "collapsed: far fewer directions than random factors have",
                effective_rank=2.1,
                null=7.4,
            ),
            finding("dead", f"layers.{dead_layer}.ov", 0, "dead: its norm is next to nothing", operator_norm=1e-4),
            finding("failed", f"layers.{failed_layer}.ov", heads // 2, "no spectrum: the weights hold NaN"),
        ],
    }
    return scan(**(given | changes))  # type: ignore[arg-type]


def encoder_decoder() -> Json:
    """Two stacks of different depth and head count, with self and cross attention."""
    sites: list[Json] = []
    for layer in range(3):
        sites += attention(layer, heads=4, prefix="encoder.layers", middle=".self", stack="encoder")
    for layer in range(2):
        sites += attention(layer, heads=6, prefix="decoder.layers", middle=".self", stack="decoder")
        sites += attention(layer, heads=6, prefix="decoder.layers", middle=".cross", stack="decoder")
    return scan(sites, source="models/toy-translator")


def grouped_rotary() -> Json:
    """Grouped queries under rotary embedding."""
    sites = [site for layer in range(3) for site in attention(layer, heads=8, groups=2, rotary=True)]
    return scan(sites, source="models/toy-llama")


def uneven() -> Json:
    """A pruned model: every layer has its own number of heads."""
    return scan([site for layer, heads in enumerate((4, 1, 6)) for site in attention(layer, heads=heads)])


def matrices_only() -> Json:
    """A network without attention, its spectra asked for."""
    sites = [
        matrix(
            f"blocks.{layer}.{role}.mlp",
            kind="mlp",
            layer=layer,
            weight=gaussian(32, 24, seed=2 * layer + place),
            spectrum=True,
        )
        for layer in range(3)
        for place, role in enumerate(("in", "out"))
    ]
    return scan(sites, source="models/toy-perceptron")


def series(steps: Sequence[int] = (0, 100, 1000)) -> list[Json]:
    """Checkpoints of one run, whose rank falls as it trains."""
    return [
        scan(
            [
                site
                for layer in range(3)
                for site in attention(layer, decay=0.02 + 0.25 * position, collapsed=1 if position == 2 else None)
            ],
            source=f"runs/toy/step{step}",
            step=step,
        )
        for position, step in enumerate(steps)
    ]


def difference() -> Json:
    """What changed between two checkpoints: no balance, low rank, and what a LoRA of each matrix needs."""
    sites = [site for layer in range(3) for site in attention(layer, decay=0.8)]
    for site in sites:
        site["null"] = None
        for position, head in enumerate(site["heads"]):
            overlaps = {
                "left": 0.6,
                "right": 0.1 * position,
                "error": 1e-9,
                "left_chance": 0.125,
                "right_chance": 0.125,
            }
            head |= {"null_scale": None, "balance": None, "change": {"relative": 0.01 * (position + 1), **overlaps}}
    record = scan(sites, source="models/toy-tuned", base="models/toy-decoder")
    kept = {"90%": 3, "95%": 5, "99%": None}
    return record | {
        "matrices": [
            {"parameter": "layers.0.query.weight", "shape": [64, 64], "sites": ["layers.0.qk"]}
            | {"relative": 0.02, "ranks": kept, "reason": None},
            {"parameter": "norm.weight", "shape": [64, 2], "sites": []}
            | {"relative": 0.0, "ranks": None, "reason": "unchanged"},
        ]
    }
