"""Replays of one attention module on random streams, and what the sites predict for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankwise.sites.certify.prediction import flat_heads, keys, queries, rotated, values
from rankwise.sites.certify.replay import Replay, Run
from rankwise.sites.site import Site

# Streams are scaled so that the largest logit is near this: large enough to see, small enough not to saturate anything.
WANTED_LOGIT = 4.0
_MOST_REPLAYS = 64


@dataclass(frozen=True)
class Draw:
    """One replay and the streams it ran on."""

    streams: Mapping[str, Tensor]
    run: Run


@dataclass
class Draws:
    """As many replays as a proof asks for, made once and kept.

    Arguments:
        replay: the module.
        shapes: the shape of each stream.
        size: the standard deviation of the streams.
    """

    replay: Replay
    shapes: Mapping[str, Tensor]
    size: float = 1.0
    seed: int = 0
    _kept: list[Draw] = field(default_factory=list)

    def streams(self) -> dict[str, Tensor]:
        """Fresh random streams."""
        self.seed += 1
        generator = torch.Generator().manual_seed(self.seed)
        return {
            key: (self.size * torch.randn(like.shape, generator=generator, dtype=torch.float64)).to(like)
            for key, like in self.shapes.items()
        }

    def take(self, count: int) -> list[Draw]:
        """The first `count` replays."""
        while len(self._kept) < min(count, _MOST_REPLAYS):
            streams = self.streams()
            self._kept.append(Draw(streams, self.replay.run(streams)))
        return self._kept[:count]

    def fit_size(self, sites: Sequence[Site]) -> None:
        """Choose the size of the streams so that the largest logit is near `WANTED_LOGIT`."""
        streams = self.streams()
        largest = 0.0
        for site in sites:
            q, k = (self.predicted(site, side, streams) for side in ("q", "k"))
            logits = torch.einsum("hnr,hnr->hn", q[:, : k.shape[1]], k[:, : q.shape[1]])
            largest = max(largest, float(logits.abs().max()) * (site.attention.scale if site.attention else 1.0))
        if not WANTED_LOGIT / 8 < largest < 2 * WANTED_LOGIT and 0 < largest < float("inf"):
            self.size *= (WANTED_LOGIT / largest) ** 0.5

    def predicted(self, site: Site, side: str, streams: Mapping[str, Tensor]) -> Tensor:
        """Queries, keys or values of a stream, `[heads, tokens, size]`."""
        stream = streams[self.replay.key(site, side)].to(self.replay.dtype)
        rows = stream.reshape(-1, stream.shape[-1])
        made = {"q": queries, "k": keys, "v": values}[side](site, self.replay.source, rows)
        return flat_heads(made, site)

    def lead(self, site: Site, side: str) -> tuple[int, ...]:
        """The leading axes of the stream that a side of the site reads."""
        return tuple(self.shapes[self.replay.key(site, side)].shape[:-1])


@dataclass(frozen=True)
class Part:
    """The share of one site in the logits: queries and keys, the dimensions that stand still, the pairs that turn.

    Arguments:
        site: the site.
        query, key: `[samples, heads, positions, size]`.
        weight: what multiplies each dimension after it has turned, `[heads, size]`.
    """

    site: Site
    query: Tensor
    key: Tensor
    weight: Tensor | None = None

    @property
    def _split(self) -> tuple[Tensor, Tensor]:
        facts = self.site.attention
        return rotated(facts.rotary if facts is not None else None, self.query.shape[-1])

    @property
    def scale(self) -> float:
        return self.site.attention.scale if self.site.attention is not None else 1.0

    def still(self) -> Tensor:
        """The logits of the dimensions that do not turn, `[samples, heads, queries, keys]`."""
        _, dims = self._split
        query = self.query if self.weight is None else self.query * self.weight[:, None]
        return self.scale * query[..., dims] @ self.key[..., dims].mT

    def turning(self, i: int, j: int) -> list[Tensor]:
        """What the angles' functions multiply for one query and one key position, each `[samples, heads, pairs]`.

        Without weights: the dot and the cross product of each pair, for the cosine and the sine of one angle. With
        weights: for `cos cos`, `sin sin`, `sin cos` and `cos sin` of the query's and the key's own angles.
        """
        pairs, _ = self._split
        q, k = self.scale * self.query[..., i, :][..., pairs], self.key[..., j, :][..., pairs]
        same, other, across, back = (q[..., a] * k[..., b] for a, b in ((0, 0), (1, 1), (0, 1), (1, 0)))
        if self.weight is None:
            return [same + other, across - back]
        one, two = self.weight[:, pairs].unbind(-1)
        return [
            *(same * one + other * two, same * two + other * one),
            *(across * two - back * one, back * two - across * one),
        ]

    @property
    def pairs(self) -> int:
        return len(self._split[0])

    @property
    def angles(self) -> int:
        """How many functions of angles stand in the logit at fixed positions."""
        return self.pairs * (2 if self.weight is None else 4)
