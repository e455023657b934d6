"""What a coordinate of the product vector is in a network."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Pairing(Enum):
    """Which two diagonal weights of an attention head are multiplied."""

    QK = "QK"
    """Keys with queries: the logits."""
    VO = "VO"
    """Values with outputs: what is written."""


@dataclass(frozen=True, kw_only=True)
class Coordinate:
    """The place of one product in a network with diagonal attention weights.

    >>> print(Coordinate(layer=1, head=0, pairing=Pairing.QK, channel=3))
    layer 1 head 0 QK 3
    """

    layer: int
    head: int
    pairing: Pairing
    channel: int

    def __str__(self) -> str:
        return f"layer {self.layer} head {self.head} {self.pairing.value} {self.channel}"
