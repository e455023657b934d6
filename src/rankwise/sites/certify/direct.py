"""Arguments for an attention module itself, where no run of the model reached it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rankwise.sites.certify.probe import BATCH, ENCODER_TOKENS, TOKENS
from rankwise.sites.site import Site

_OTHER_STREAM = ("key", "value", "key_value_states", "encoder_hidden_states", "kv_states", "context")
_ONE_STREAM = ("query", "hidden_states", "x", "input", "inputs", "hidden_state", "queries")


def direct_arguments(module: nn.Module, sites: Sequence[Site]) -> dict[str, Any] | None:
    """Random streams (and angles, where the module is handed its rotary embedding) for the arguments of a module.

    None where the module's forward names no stream that is known.
    """
    try:
        parameters = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return None
    generator = torch.Generator().manual_seed(0)
    like = next((each for each in module.parameters() if each.is_floating_point()), torch.zeros(()))
    widths = _widths(sites)
    flat = "cu_seqlens" in parameters
    given: dict[str, Any] = {}
    for name, spec in parameters.items():
        required = spec.default is inspect.Parameter.empty and spec.kind in (
            spec.POSITIONAL_OR_KEYWORD,
            spec.KEYWORD_ONLY,
        )
        if name in _ONE_STREAM:
            given[name] = _normal(generator, like, *((TOKENS,) if flat else (BATCH, TOKENS)), widths["q"])
        elif name in _OTHER_STREAM and (required or any(_cross(site) for site in sites)):
            given[name] = _normal(generator, like, BATCH, ENCODER_TOKENS, widths["v" if name == "value" else "k"])
        elif name == "position_embeddings" and (turning := _turning(sites)):
            angles = 6.0 * torch.rand(*((TOKENS,) if flat else (1, TOKENS)), turning // 2, generator=generator)
            whole = torch.cat([angles, angles], -1) if not _interleaved(sites) else angles.repeat_interleave(2, -1)
            given[name] = (whole.cos().to(like), whole.sin().to(like))
        elif name == "cu_seqlens":
            given[name] = torch.tensor([0, TOKENS], device=like.device)
        elif required:
            given[name] = None
    if not any(isinstance(value, Tensor) and value.is_floating_point() for value in given.values()):
        return None
    if isinstance(module, nn.MultiheadAttention) and not module.batch_first:
        given = {name: value.transpose(0, 1) for name, value in given.items()}
    return given


def _normal(generator: torch.Generator, like: Tensor, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator).to(like)


def _widths(sites: Sequence[Site]) -> dict[str, int]:
    widths = {"q": sites[0].shape[-2], "k": sites[0].shape[-1], "v": sites[0].shape[-1]}
    for site in sites:
        if site.kind == "qk":
            widths["q"], widths["k"] = site.shape[-2:]
        else:
            widths["v"] = site.shape[-1]
    return widths


def _cross(site: Site) -> bool:
    return site.attention is not None and site.attention.cross


def _turning(sites: Sequence[Site]) -> int:
    sizes = [site.attention.rotary.rotated for site in sites if site.attention and site.attention.rotary]
    return sizes[0] if sizes else 0


def _interleaved(sites: Sequence[Site]) -> bool:
    return any(s.attention and s.attention.rotary and s.attention.rotary.pairs == "interleaved" for s in sites)
