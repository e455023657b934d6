"""Put every attention site of a live model to the proof, one module at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from rankwise.errors import UserError
from rankwise.sites.certify.calls import Call, candidates, record
from rankwise.sites.certify.certificates import Certificate, Certificates, Proof
from rankwise.sites.certify.draws import Draws
from rankwise.sites.certify.gauge import prove_gauge
from rankwise.sites.certify.logits import prove_logits
from rankwise.sites.certify.output import prove_output
from rankwise.sites.certify.prediction import query_side
from rankwise.sites.certify.replay import Replay, ReplayError
from rankwise.sites.site import Site
from rankwise.sites.sites import Sites

# In float64 the limit is what libraries compute in float32 all the same: norms, softmax, rotary tables.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4}
_LONGEST_REASON = 300
# What the name of a product has behind its module's where its logits are added to those of the module's own.
_ADDED = re.compile(r"\.(rotary|layout)(?=\.qk$)")


def certify(sites: Sites, model: Any, inputs: Mapping[str, Any] | None = None) -> Certificates:
    """Prove every attention site on the real module: by its logits and outputs, and by gauge moves.

    The model itself runs once, in eval mode and without gradients, to see how it calls its attention; the proofs run on
    copies of single modules in float64, or in float32 where a module does not run in float64.

    Arguments:
        sites: what `find` found in the model.
        model: the live module.
        inputs: keyword arguments of its forward; made up from its configuration by default.
    """
    if not isinstance(model, nn.Module):
        given = type(model).__name__
        raise UserError(f"certify runs the model, so it needs the live module, not a {given}: pass certify(model)")
    modules: dict[str, list[Site]] = {}
    for site in sites:
        if site.attention is not None:
            modules.setdefault(site.attention.module, []).append(site)
    calls, problems = record(model, tuple(modules), inputs)
    factors = sorted({f for module in model.modules() for f in _attention_factors(module)})
    certificates: dict[str, Certificate] = {}
    for path, members in modules.items():
        certificates |= _prove_module(model, candidates(model, calls, path, members), members, factors, problems)
    return Certificates(sites, {site.name: certificates[site.name] for site in sites if site.name in certificates})


def _prove_module(
    model: nn.Module, calls: Iterable[Call], sites: Sequence[Site], factors: Sequence[float], problems: Sequence[str]
) -> dict[str, Certificate]:
    """The certificates of the sites of one attention module, in float64 where that runs and in float32 where not."""
    reasons: list[str] = []
    for call in calls:
        for dtype, tolerance in TOLERANCE.items():
            try:
                replay = Replay(model.get_submodule(call.path), call, dtype=dtype, sites=sites)
                certificates = _prove(replay, sites, tolerance, factors)
                return {name: _said(each, call.whose) for name, each in certificates.items()}
            except ReplayError as error:
                reasons.append(str(error))
    reason = f"the module does not run on its own: {reasons[0]}" if reasons else "the module was never called"
    return {site.name: _without(site, "; ".join([reason, *problems[:2]])) for site in sites}


def _prove(replay: Replay, sites: Sequence[Site], tolerance: float, factors: Sequence[float]) -> dict[str, Certificate]:
    shapes = replay.plain.inputs
    keys = [replay.key(site, side) for site in sites for side in _sides(site)]
    if missing := [key for key in keys if key not in shapes]:
        raise ReplayError(f"it does not call '{missing[0]}'")
    certificates = {}
    for group in _groups(sites):
        if wrong := [reason for site in group if (reason := _turns_too_much(site, replay))]:
            certificates |= {s.name: replace(_without(s, ""), value=Proof("failed", detail=wrong[0])) for s in group}
            continue
        draws = Draws(replay, {key: shapes[key] for key in keys})
        queries = [site for site in group if site.kind == "qk"]
        if queries:
            draws.fit_size(queries)
        value = (
            prove_logits(queries, draws, tolerance, factors) if queries else prove_output(group[0], draws, tolerance)
        )
        for site in group:
            gauge = prove_gauge(site, sites, draws, tolerance)
            certificates[site.name] = Certificate(site=site.name, value=value, gauge=gauge)
    return certificates


def _turns_too_much(site: Site, replay: Replay) -> str:
    """Why a site's rotary facts cannot be right for its heads, "" where they can."""
    rotary = site.attention.rotary if site.attention is not None else None
    factor = site.factors[query_side(site) - 1]
    size = factor.view(replay.source[factor.parameter]).shape[-1]
    if rotary is None or rotary.start + rotary.rotated <= size:
        return ""
    return f"{rotary.rotated} dimensions from {rotary.start} on are said to turn, in heads of {size}"


def _groups(sites: Sequence[Site]) -> list[list[Site]]:
    """Sites whose products add up in one logit stand together: a QK product and its decoupled rotary part, say."""
    groups: dict[str, list[Site]] = {}
    for site in sites:
        groups.setdefault(_ADDED.sub("", site.name), []).append(site)
    return list(groups.values())


def _said(certificate: Certificate, whose: str) -> Certificate:
    """The certificate with a word on the arguments where they are not the module's own."""
    value = certificate.value
    return replace(certificate, value=replace(value, detail="; ".join(filter(None, [value.detail, whose]))))


def _sides(site: Site) -> str:
    return "qk" if site.kind == "qk" else "v"


def _without(site: Site, reason: str) -> Certificate:
    short = " ".join(reason.split())[:_LONGEST_REASON]
    return Certificate(site=site.name, value=Proof.absent(short), gauge=Proof.absent("as above"))


def _attention_factors(module: nn.Module) -> tuple[float, ...]:
    """What a rotary embedding multiplies cosines and sines by (once for queries and once for keys)."""
    scaling = getattr(module, "attention_scaling", None)
    return (float(scaling) ** 2,) if isinstance(scaling, int | float) and scaling != 1 else ()
