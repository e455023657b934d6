"""Stage A of the greedy algorithm: on a plateau every idle coordinate drifts, and the first to arrive activates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

# Arrivals closer than this share of the time so far are a tie: what is left of the digits is rounding.
TIE = 1e-8


@dataclass(frozen=True)
class Race:
    """Who activates next, when, and how clearly.

    Arguments:
        winner: the coordinate that arrives first; None where no idle coordinate moves.
        wait: the rescaled time that it takes.
        sign: the sign of its product, that of its force.
        margin: how much later the runner-up arrives, infinite without one.
        runner_up: the second to arrive, if any.
        tied: everyone who arrives at the same time as the winner, if anyone does; then there is no next stage.
    """

    winner: int | None
    wait: float = field(kw_only=True, default=math.inf)
    sign: int = field(kw_only=True, default=0)
    margin: float = field(kw_only=True, default=math.inf)
    runner_up: int | None = field(kw_only=True, default=None)
    tied: tuple[int, ...] = field(kw_only=True, default=())


def arrivals(
    force: Float[Tensor, " p"], log_scale: Float[Tensor, " p"], active: Bool[Tensor, " p"], *, floor: float
) -> Float[Tensor, " p"]:
    """How long each idle coordinate takes, in rescaled time.

        (b - 1 + sgn(g)) / g:   b / g to b = 0 for a positive force, (2 - b) / |g| to b = 2 for a negative one,

    infinite for active coordinates and for forces below the floor. One that just left the support has the whole way
    from one wall to the other before it.

    >>> half = torch.tensor([1.0, 1.0, 0.0]).double()
    >>> arrivals(torch.tensor([0.5, -2.0, -1.0]).double(), half, half > 2, floor=0.0)
    tensor([2.0000, 0.5000, 2.0000], dtype=torch.float64)
    """
    moving = ~active & (force.abs() > floor)
    safe = torch.where(moving, force, 1.0)
    return torch.where(moving, (log_scale - 1 + safe.sign()) / safe, torch.inf)


def race(
    force: Float[Tensor, " p"],
    log_scale: Float[Tensor, " p"],
    active: Bool[Tensor, " p"],
    *,
    elapsed: float,
    floor: float,
) -> Race:
    """The next coordinate to activate.

    Arguments:
        force: `g` at the plateau.
        log_scale: `b` of every coordinate when the plateau began.
        active: the support.
        elapsed: the rescaled time so far, against which ties are judged.
        floor: forces up to here count as zero.
    """
    waits = arrivals(force, log_scale, active, floor=floor)
    order = torch.argsort(waits)
    first = int(order[0])
    wait = float(waits[first])
    if math.isinf(wait):
        return Race(None)
    tied = (waits - wait <= TIE * (elapsed + wait)).nonzero().flatten().tolist()
    second = int(order[1]) if len(order) > 1 and bool(waits[order[1]].isfinite()) else None
    return Race(
        first,
        wait=wait,
        sign=1 if force[first] > 0 else -1,
        margin=math.inf if second is None else float(waits[second]) - wait,
        runner_up=second,
        tied=tuple(tied) if len(tied) > 1 else (),
    )
