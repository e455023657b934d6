"""Queries, keys and values as a site says they are computed, from the stored factors and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from rankwise.sites.factor import Factor
from rankwise.sites.site import RotaryFacts, Site


def queries(site: Site, source: Mapping[str, Tensor], stream: Tensor) -> Tensor:
    """The queries of a stream `[tokens, width]`, as `[*batch, tokens, head size]`."""
    return _through(site, source, stream, range(query_side(site)), norm=True)


def keys(site: Site, source: Mapping[str, Tensor], stream: Tensor) -> Tensor:
    """The keys of a stream `[tokens, width]`, as `[*batch, tokens, head size]`."""
    return _through(site, source, stream, range(len(site.factors) - 1, query_side(site) - 1, -1), norm=True)


def values(site: Site, source: Mapping[str, Tensor], stream: Tensor) -> Tensor:
    """The values of a stream `[tokens, width]`, as `[*batch, tokens, head size]`."""
    return _through(site, source, stream, range(len(site.factors) - 1, 0, -1), norm=False)


def late_weight(site: Site, source: Mapping[str, Tensor]) -> Tensor | None:
    """What gains multiply each dimension by after the rotation, `[heads, head size]`; None where they come before."""
    facts = site.attention
    if facts is None or facts.norm is None or not facts.norm.after_rotary or not any(site.gains):
        return None
    weight: Tensor | None = None
    for gain in site.gains:
        if gain is not None:
            vector = flat_heads(_as_row(gain.offset + gain.factor.view(source[gain.factor.parameter])), site)[:, 0]
            weight = vector if weight is None else weight * vector
    return weight


def query_side(site: Site) -> int:
    """How many of the factors stand on the query's (or the output's) side of the head."""
    if site.kind == "ov":
        return 1
    return site.attention.query_factors if site.attention is not None else 1


def flat_heads(stack: Tensor, site: Site) -> Tensor:
    """`[*batch, rows, columns]` as `[heads, rows, columns]`, the shared ones repeated."""
    batch = [size for _, size in site.batch]
    return stack.expand(*batch, *stack.shape[-2:]).reshape(site.heads, *stack.shape[-2:])


def rotated(rotary: RotaryFacts | None, size: int) -> tuple[Tensor, Tensor]:
    """The pairs `[pairs, 2]` of a head that turn with the position, and the dimensions that do not."""
    if rotary is None:
        return torch.empty(0, 2, dtype=torch.long), torch.arange(size)
    pairs = rotary.index()
    fixed = [position for position in range(size) if position not in set(pairs.flatten().tolist())]
    return pairs, torch.tensor(fixed, dtype=torch.long)


def _through(site: Site, source: Mapping[str, Tensor], stream: Tensor, positions: range, *, norm: bool) -> Tensor:
    for position in positions:
        factor = site.factors[position].view(source[site.factors[position].parameter])
        on_query_side = position < query_side(site) and site.kind == "qk"
        # A factor on the query's side is [width, head size], on the other side [head size, width].
        stream = stream @ (factor if on_query_side else factor.mT)
        for bias in site.added(position):
            shift = bias.view(source[bias.parameter])
            stream = stream + (shift if on_query_side else shift.mT)
        latent = position != positions[-1]
        if norm or latent:
            stream = _normalized(site, source, stream, position, latent=latent)
    return stream


def _normalized(site: Site, source: Mapping[str, Tensor], stream: Tensor, position: int, *, latent: bool) -> Tensor:
    facts = site.attention
    gain = site.gains[position] if site.gains else None
    declared = facts.norm if facts is not None and not latent else None
    shift = None
    if declared is not None and facts is not None:
        eps, kind, over = facts.norm_eps, declared.kind, declared.over
    elif latent and gain is not None and facts is not None:
        eps, kind, over = facts.latent_eps, "rms", "head"
    else:
        eps, kind, over = 0.0, "none", "head"
    # Over the width: over all heads at once, which are the leading axes here.
    dims = (*range(stream.ndim - 2), -1) if over == "width" else (-1,)
    stream = _scaled(stream, kind, eps, dims=dims)
    if gain is not None and not (declared is not None and declared.after_rotary and not latent):
        vector = gain.offset + gain.factor.view(source[gain.factor.parameter])
        stream = stream * _as_row(vector)
        shift = _sibling(gain.factor, source)
    return stream if shift is None else stream + _as_row(shift)


def _scaled(stream: Tensor, kind: str, eps: float, *, dims: tuple[int, ...]) -> Tensor:
    if kind == "layer":
        stream = stream - stream.mean(dims, keepdim=True)
    if kind in ("rms", "layer"):
        return stream * torch.rsqrt(stream.square().mean(dims, keepdim=True) + eps)
    if kind == "l2":
        return stream / stream.square().sum(dims, keepdim=True).sqrt().clamp_min(eps or 1e-12)
    return stream


def _as_row(vector: Tensor) -> Tensor:
    return vector if vector.shape[-2] == 1 else vector.mT


def _sibling(gain: Factor, source: Mapping[str, Tensor]) -> Tensor | None:
    """The bias of a normalization, stored beside its gain."""
    name = f"{gain.parameter.removesuffix('weight')}bias"
    if not gain.parameter.endswith("weight") or name not in source:
        return None
    return replace(gain, parameter=name).view(source[name])
