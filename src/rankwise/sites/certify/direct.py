"""Arguments for an attention module itself, where no run of the model reached it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rankwise.sites.certify.probe import BATCH, ENCODER_TOKENS, TOKENS
from rankwise.sites.site import Site

_OTHER_STREAM = (
    *("key", "value", "key_value_states", "encoder_hidden_states", "kv_states", "context"),
    *("cross_attention_states", "text_hidden_states"),
)
_ONE_STREAM = ("query", "hidden_states", "x", "input", "inputs", "hidden_state", "queries", "latents")


def direct_arguments(module: nn.Module, sites: Sequence[Site]) -> Iterator[dict[str, Any]]:
    """Random streams (and angles, where the module is handed its rotary embedding) for the arguments of a module.

    One after the other in each form that such modules take them; none where the module's forward names no stream that
    is known.
    """
    try:
        parameters = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return
    # A sequence without a batch, a batch of one, a batch, a batch for each prompt of an image, as many keys as queries.
    forms = [((), ENCODER_TOKENS), ((1,), ENCODER_TOKENS)] if "cu_seqlens" in parameters else []
    forms += [((BATCH,), ENCODER_TOKENS), ((2, 2), ENCODER_TOKENS), ((BATCH,), TOKENS)]
    for lead, others in forms:
        if (given := _arguments(module, sites, lead, others)) is not None:
            yield given


def _arguments(module: nn.Module, sites: Sequence[Site], lead: tuple[int, ...], others: int) -> dict[str, Any] | None:
    """Arguments whose streams have the given leading axes, with so many tokens in the other stream."""
    parameters = inspect.signature(module.forward).parameters
    generator = torch.Generator().manual_seed(0)
    like = next((each for each in module.parameters() if each.is_floating_point()), torch.zeros(()))
    widths = _widths(sites)
    given: dict[str, Any] = {}
    for name, spec in parameters.items():
        required = spec.default is inspect.Parameter.empty and spec.kind in (
            spec.POSITIONAL_OR_KEYWORD,
            spec.KEYWORD_ONLY,
        )
        if name in _ONE_STREAM:
            given[name] = _normal(generator, like, *lead, TOKENS, widths["q"])
        elif name in _OTHER_STREAM and (required or any(_cross(site) for site in sites)):
            given[name] = _normal(generator, like, *lead, others, widths["v" if name == "value" else "k"])
        elif name == "position_embeddings" and (turning := _turning(sites)):
            angles = 6.0 * torch.rand(*((1, TOKENS) if lead else (TOKENS,)), turning // 2, generator=generator)
            whole = torch.cat([angles, angles], -1) if not _interleaved(sites) else angles.repeat_interleave(2, -1)
            given[name] = (whole.cos().to(like), whole.sin().to(like))
        elif name == "cu_seqlens":
            given[name] = torch.tensor([0, TOKENS], device=like.device)
        elif name == "input_features_mask":
            given[name] = torch.ones(*lead, TOKENS, dtype=torch.bool, device=like.device)
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
