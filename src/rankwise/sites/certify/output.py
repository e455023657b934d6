"""The proof of an OV site: with the module's own attention pattern, it reproduces the module's output."""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.sites.certify.axes import as_samples
from rankwise.sites.certify.certificates import Proof
from rankwise.sites.certify.draws import Draw, Draws
from rankwise.sites.certify.logits import Reader, readers
from rankwise.sites.certify.prediction import flat_heads
from rankwise.sites.site import Site


def prove_output(site: Site, draws: Draws, tolerance: float) -> Proof:
    """Compare `sum_h A_h [x, 1] P_h^T` and the output's bias with what the output projection gave.

    Arguments:
        site: the OV site.
        draws: replays of its module.
        tolerance: the largest error that passes, relative to the largest output.
    """
    draw = draws.take(1)[0]
    if not draw.run.attentions:
        return Proof.absent("no softmax and no fused attention was seen inside the module")
    real = draw.run.outputs.get(draws.replay.key(site, "o"), draw.run.result)
    lead = tuple(real.shape[:-1])
    best: Proof | None = None
    for reader in readers(draw.run.attentions, site.heads, lead, draws.lead(site, "v")):
        error = max(_error(site, draws, each, reader) for each in draws.take(2))
        proof = Proof.of(error, tolerance)
        if proof.status == "failed" and any("sink" in name for name in draws.replay.source):
            error = max(_error(site, draws, each, reader, sink=True) for each in draws.take(2))
            proof = Proof.of(error, tolerance, "times what its head's sink leaves to each query")
        if proof.status == "passed":
            return proof
        best = proof if best is None or error < (best.error or 0.0) else best
    if draws.replay.key(site, "o") not in draw.run.outputs:
        return Proof.absent("the output is projected inside the module, where it cannot be seen by itself")
    shapes = ", ".join(str(tuple(each.logits.shape)) for each in draw.run.attentions[:4])
    return best or Proof.absent(
        f"attention of shape {shapes} does not match {site.heads} heads and an output of {lead}"
    )


def _error(site: Site, draws: Draws, draw: Draw, reader: Reader, *, sink: bool = False) -> float:
    source = draws.replay.source
    values = as_samples(draws.predicted(site, "v", draw.streams), *reader.key[2:])
    pattern = reader.target(draws, draw.run, site.heads, "pattern")
    first = site.factors[0]
    out = flat_heads(first.view(source[first.parameter]), site)
    heads = torch.einsum("bhij,bhjr,hdr->bidh", pattern, values, out) * site.scaling
    bias = _bias(site, source)
    real = draw.run.outputs.get(draws.replay.key(site, "o"), draw.run.result)
    real = as_samples(real.reshape(1, -1, real.shape[-1]), *reader.query[2:])[:, 0]
    if real.shape != heads.shape[:-1]:
        return float("inf")
    left = real if bias is None else real - bias
    if sink:
        logits = reader.target(draws, draw.run, site.heads)
        heads = heads * _kept_by_sinks(heads, left, logits.logsumexp(-1).mT)[..., None, :]
    mixed = heads.sum(-1)
    return float((mixed - left).abs().max() / real.abs().max().clamp_min(1e-30))


def _kept_by_sinks(heads: Tensor, real: Tensor, mass: Tensor) -> Tensor:
    """What share of each head each query keeps, `[samples, queries, heads]`, by least squares over the output's width.

    A sink of logit `s` keeps `sigmoid(m - s)` of a query whose logits have the log-sum-exp `m`. One `s` for each head
    is taken from the share nearest to a half, which says it best, and gives all the others.
    """
    width, count = heads.shape[-2:]
    if width < 2 * count:
        return torch.ones_like(mass)
    kept = torch.linalg.lstsq(heads, real[..., None]).solution[..., 0].flatten(0, 1)
    best = (kept - 0.5).abs().argmin(0, keepdim=True)
    sinks = (mass.flatten(0, 1) - torch.logit(kept)).gather(0, best)[0]
    return torch.sigmoid(mass - sinks).nan_to_num(1.0)


def _bias(site: Site, source: dict[str, Tensor]) -> Tensor | None:
    """The bias of the output projection, which is added once after all heads."""
    parameter = site.factors[0].parameter
    return source.get(f"{parameter.removesuffix('weight')}bias") if parameter.endswith("weight") else None
