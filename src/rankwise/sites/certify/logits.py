"""The first proof: the site reproduces the logits that the real module hands to its softmax."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import torch
from torch import Tensor

from rankwise.sites.certify.axes import arrangements, as_samples, readings
from rankwise.sites.certify.capture import Attention, visible
from rankwise.sites.certify.certificates import Proof
from rankwise.sites.certify.draws import Draw, Draws, Part
from rankwise.sites.certify.prediction import late_weight, query_side
from rankwise.sites.certify.replay import Run
from rankwise.sites.certify.rotary import turning_error
from rankwise.sites.site import Site

Reading = tuple[int, int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Reader:
    """One way to read a captured tensor: which attention call, and which of its axes is which."""

    query: Reading
    key: Reading
    call: int
    way: int

    def target(self, draws: Draws, run: Run, heads: int, tensor: str = "logits") -> Tensor:
        """The logits or the pattern of a replay, `[samples, heads, queries, keys]`."""
        captured = getattr(run.attentions[self.call], tensor).to(draws.replay.dtype)
        ways = arrangements(captured, self.query[0], heads, self.query[1], self.key[1])
        return next(way for index, way in enumerate(ways) if index == self.way)

    def part(self, site: Site, draws: Draws, streams: Mapping[str, Tensor]) -> Part:
        q = as_samples(draws.predicted(site, "q", streams), *self.query[2:])
        k = as_samples(draws.predicted(site, "k", streams), *self.key[2:])
        return Part(site, q, k, late_weight(site, draws.replay.source))


def readers(
    attentions: Sequence[Attention], heads: int, query_lead: tuple[int, ...], key_lead: tuple[int, ...]
) -> Iterator[Reader]:
    """Every way to read the captured calls that their sizes allow."""
    for call, attention in enumerate(attentions):
        for query in readings(query_lead):
            for key in readings(key_lead):
                if query[0] != key[0]:
                    continue
                ways = arrangements(attention.logits, query[0], heads, query[1], key[1])
                yield from (Reader(query, key, call, way) for way, _ in enumerate(ways))


def prove_logits(sites: Sequence[Site], draws: Draws, tolerance: float, factors: Sequence[float]) -> Proof:
    """Compare the captured logits with the sum of what the sites predict.

    Arguments:
        sites: the QK site of one module, and its decoupled rotary part where there is one.
        draws: replays of the module.
        tolerance: the largest error that passes, relative to the largest logit.
        factors: what a rotary embedding may multiply the logits by, besides 1.
    """
    first = draws.take(1)[0].run.attentions
    if not first:
        return Proof.absent("no softmax and no fused attention was seen inside the module")
    heads = max(site.heads for site in sites)
    found = list(readers(first, heads, draws.lead(sites[0], "q"), draws.lead(sites[0], "k")))
    if not found:
        shapes = ", ".join(str(tuple(each.logits.shape)) for each in first[:4])
        lead = f"{draws.lead(sites[0], 'q')} by {draws.lead(sites[0], 'k')}"
        return Proof.absent(f"logits of shape {shapes} do not match {heads} heads over tokens {lead}")
    outcomes = []
    for reader in found:
        proof = _compare(reader, sites, draws, heads, tolerance, factors)
        if proof.status == "passed":
            return proof
        outcomes.append(proof)
    return min(outcomes, key=lambda proof: proof.error if proof.error is not None else float("inf"))


def _compare(
    reader: Reader, sites: Sequence[Site], draws: Draws, heads: int, tolerance: float, factors: Sequence[float]
) -> Proof:
    pairs = sum(_pairs(site) for site in sites)
    samples = reader.query[0]
    taken = draws.take(max(3, ceil(8 / samples), ceil((8 * pairs + 16) / (samples * heads)) if pairs else 0))
    target = torch.cat([reader.target(draws, draw.run, heads) for draw in taken])
    seen = visible(target).all(0)
    if not seen.any():
        return Proof.absent("every logit is masked")
    target = target.where(seen, 0.0)
    softcap = sites[0].attention.softcap if sites[0].attention is not None else None
    if softcap is not None:
        if float(target.abs().max()) >= softcap:
            return Proof("failed", detail=f"a logit lies beyond the cap {softcap}")
        target = softcap * torch.atanh(target / softcap)
    parts = _parts(reader, sites, draws, taken)
    largest = float(target.abs().max())
    if not largest:
        return Proof.absent("every logit is zero")
    still = torch.stack([part.still() for part in parts]).sum(0)
    if pairs:
        rounding = draws.replay.rounding
        return turning_error(
            target - still, parts, seen, largest=largest, tolerance=tolerance, rounding=rounding, factors=factors
        )
    shifted = (
        not pairs and softcap is None and bool((target.where(seen, -torch.inf).amax(-1)[:, seen.any(-1)] == 0).all())
    )
    if shifted:
        # The module has taken off each row's largest logit, which its softmax does not see.
        target, still = (_centred(each, seen) for each in (target, still))
        largest = float(target.abs().max())
    error = (target - still).where(seen, 0.0)
    exact = Proof.of(float(error.abs().max()) / largest, tolerance)
    if shifted:
        # Neither does it see what a bias of the keys adds to a row.
        unseen = any(site.added(position) for site in sites for position in range(query_side(site), len(site.factors)))
        exact = replace(exact, detail="each row up to one number, which no softmax sees", partial=unseen)
    if exact.status == "passed":
        return exact
    # Masks and position biases are the same in every replay, whatever they are made of.
    error, moving = (each.unflatten(0, (len(taken), -1)) for each in (error, target))
    centred = float((error - error.mean(0)).abs().max()) / float((moving - moving.mean(0)).abs().max())
    proof = replace(exact, status=Proof.of(centred, tolerance).status, error=centred)
    proof = replace(proof, detail="; ".join(filter(None, [exact.detail, "beside terms that the streams do not enter"])))
    if proof.status == "passed" or softcap is not None or shifted:
        return proof
    return _second_difference(reader, sites, draws, heads, tolerance) or exact


def _parts(reader: Reader, sites: Sequence[Site], draws: Draws, taken: Sequence[Draw]) -> list[Part]:
    parts = []
    for site in sites:
        each = [reader.part(site, draws, draw.streams) for draw in taken]
        parts.append(
            Part(site, torch.cat([part.query for part in each]), torch.cat([part.key for part in each]), each[0].weight)
        )
    return parts


def _second_difference(
    reader: Reader, sites: Sequence[Site], draws: Draws, heads: int, tolerance: float
) -> Proof | None:
    """`l(x_i, x_j) - l(0, x_j) - l(x_i, 0) + l(0, 0)`: free of terms of one token and its offset, and of biases.

    It is admitted only where the module itself has such terms (seen without the site: a zero query's logits then depend
    on where the query stands), because it could not see a wrong bias. None where it has none.
    """
    query_key, key_key = (draws.replay.key(sites[0], side) for side in "qk")
    query_at, key_at = _halves(reader, shared=query_key == key_key)
    logits, still = [], []
    streams = draws.streams()
    for no_query, no_key in ((False, False), (True, False), (False, True), (True, True)):
        changed = dict(streams)
        if no_query:
            changed[query_key] = _emptied(changed[query_key], reader.query, query_at)
        if no_key:
            changed[key_key] = _emptied(changed[key_key], reader.key, key_at)
        run = draws.replay.run(changed)
        logits.append(reader.target(draws, run, heads)[:, :, query_at][..., key_at])
        predicted = [reader.part(site, draws, changed).still()[:, :, query_at][..., key_at] for site in sites]
        still.append(sum(predicted))
    seen = visible(torch.stack(logits)).all(0).all(0)
    if not seen.any():
        return None
    logits = [each.where(seen, 0.0) for each in logits]
    largest = float((logits[0] - logits[3]).abs().max())
    # A zero query leaves the terms of one key, and the other way round; where such a term moves with the other
    # position, it holds more than a bias.
    of_key, of_query = logits[1] - logits[3], logits[2] - logits[3]
    key_moves = _spread(of_key, seen, -2) > 10 * tolerance * largest
    if not key_moves and not _spread(of_query, seen, -1) > 10 * tolerance * largest:
        return None
    wrong = logits[0] - logits[1] - logits[2] + logits[3] - (still[0] - still[1] - still[2] + still[3])
    if not key_moves:
        wrong = torch.stack([wrong, of_key - (still[1] - still[3])])
    error = float(wrong.where(seen, 0.0).abs().max()) / largest
    partial = key_moves and any(site.added(query_side(site) - 1) for site in sites)
    detail = "beside terms of one token and its offset" + ("; the query's bias is not seen" if partial else "")
    return replace(Proof.of(error, tolerance, detail), partial=partial)


def _centred(values: Tensor, seen: Tensor) -> Tensor:
    return (values - _mean(values, seen, -1)).where(seen, 0.0)


def _spread(values: Tensor, seen: Tensor, dim: int) -> float:
    return float((values - _mean(values, seen, dim)).where(seen, 0.0).abs().max())


def _halves(reader: Reader, *, shared: bool) -> tuple[Tensor, Tensor]:
    """The query and the key positions that are emptied: all of them, or every other one where both read one stream."""
    if not shared:
        return torch.arange(reader.query[1]), torch.arange(reader.key[1])
    return torch.arange(1, reader.query[1], 2), torch.arange(0, reader.key[1], 2)


def _emptied(stream: Tensor, reading: Reading, positions: Tensor) -> Tensor:
    samples, count, _, order = reading
    kept = torch.ones(samples, count)
    kept[:, positions] = 0
    kept = kept if order == (0, 1) else kept.T
    return stream * kept.reshape(*stream.shape[:-1], 1).to(stream)


def _mean(values: Tensor, seen: Tensor, dim: int) -> Tensor:
    return values.where(seen, 0.0).sum(dim, keepdim=True) / seen.sum(dim, keepdim=True).clamp_min(1)


def _pairs(site: Site) -> int:
    rotary = site.attention.rotary if site.attention is not None else None
    return rotary.rotated // 2 if rotary is not None else 0
