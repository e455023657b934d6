"""A two-layer linear network on whitened data beside a single matrix: the cleanest pair of positive and negative."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.factorized.convention import Convention
from rankwise.theory.factorized.losses import MatrixLoss, random_factors
from rankwise.theory.factorized.shrinkage import ridge, soft_threshold
from rankwise.theory.factorized.solving import State, moments, solved
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class WhitenedNetwork(Experiment):
    """Where a two-layer linear network and a single matrix end, with the same decay on the same whitened data.

    Arguments:
        values: of `A R`: `max(s - lam, 0)`, beside the flow's end.
        rows: `|a_i|^2` of the hidden layer's outgoing rows, `max(s_i - lam, 0)`, beside the flow's end.
        orthogonality: zeros, beside `a_i . a_j` of different rows.
        shared: `a_i`, beside the incoming `r_i`, which it equals.
        single: of one matrix: `s / (1 + lam)`, beside the flow's end: no value dies.
        escape: the rate `s_1 - lam` at which a spare hidden unit leaves zero, beside the flow's from a tiny start:
            the branch in which a value above `lam` stays zero is unstable.
        ranks: of the two-layer network and of the single matrix.
    """

    values: SideBySide
    rows: SideBySide
    orthogonality: SideBySide
    shared: SideBySide
    single: SideBySide
    escape: SideBySide
    ranks: tuple[int, int] = field(kw_only=True)


def whitened_network(
    values: Float[Tensor, " k"], *, decay: float, width: int | None = None, samples: int = 40, seed: int = 0
) -> WhitenedNetwork:
    """Train `|Y - A R X|^2 / 2` with decay on data of `X X^T = 1`, `Y X^T = diag(s)`, and a single matrix beside it.

    Arguments:
        values: `s`, positive and different from one another and from the decay.
        decay: `lam`.
        width: of the hidden layer, at least as many as values; as many by default.
        samples: columns of `X`.
        seed: of the data and the start.

    >>> found = whitened_network(torch.tensor([1.0, 0.6, 0.2]), decay=0.4)
    >>> found.ranks, found.values.error < 1e-6, found.single.error < 1e-6
    ((2, 3), True, True)
    """
    s = torch.as_tensor(values, dtype=torch.float64)
    pressure = Convention.HALVED.pressure(decay)
    count = len(s)
    hidden = count if width is None else width
    if not bool((s > 0).all()) or hidden < count or samples < count:
        raise UserError(
            f"{count} values, a width of {hidden} and {samples} samples were given: give positive values and at "
            "least as many hidden units and samples"
        )
    generator = torch.Generator().manual_seed(seed)
    frame = torch.linalg.qr(torch.randn(samples, count, generator=generator, dtype=torch.float64)).Q
    inputs, outputs = frame.mT, torch.diag(s) @ frame.mT
    loss = MatrixLoss(
        shape=(count, count),
        value=lambda w: (outputs - w @ inputs).square().sum((-2, -1)) / 2,
        gradient=lambda w: (w @ inputs - outputs) @ inputs.mT,
    )
    distance = float((s - pressure).abs().min())
    if not distance > 1e-3:
        raise UserError(
            f"a value of {s.tolist()} is at the threshold {pressure:g}, where it dies algebraically: move it"
        )
    until = 40.0 / min(distance, pressure or distance, float(s.diff().abs().min()) if count > 1 else 1.0)

    def slope(factors: State) -> State:
        a, r = factors
        gradient = loss.gradient(a @ r)
        return -gradient @ r.mT - pressure * a, -a.mT @ gradient - pressure * r

    first = random_factors(loss.shape, rank=hidden, scale=0.3, seed=seed + 1)
    a, r = (one[-1] for one in solved(slope, first, moments(until, 2), tolerance=1e-10))
    alone = solved(
        lambda state: (-loss.gradient(state[0]) - pressure * state[0],), (first[0] @ first[1],), moments(60.0, 2)
    )[0][-1]
    grams = a @ a.mT
    live = soft_threshold(s, pressure)
    ends, single = torch.linalg.svdvals(a @ r)[:count], torch.linalg.svdvals(alone)
    return WhitenedNetwork(
        SideBySide(live.sort(descending=True).values, simulated=ends),
        SideBySide(live, simulated=grams.diagonal()),
        SideBySide(torch.zeros(count, count, dtype=torch.float64), simulated=grams - torch.diag(grams.diagonal())),
        SideBySide(a, simulated=r.mT),
        SideBySide(ridge(s, pressure).sort(descending=True).values, simulated=single),
        _escape(slope, s, pressure, hidden),
        ranks=(int((ends > 1e-6).sum()), int((single > 1e-6).sum())),
    )


def _escape(slope: Callable[[State], State], s: Tensor, pressure: float, hidden: int) -> SideBySide:
    """How fast the largest value leaves zero, from a start too small for its own force to matter."""
    a = torch.zeros(len(s), hidden, dtype=torch.float64)
    top = int(s.argmax())
    a[top, 0] = 1e-9
    path = solved(slope, (a, a.mT), moments(2.0, 2))[0][:, top, 0]
    return SideBySide(s[top] - pressure, simulated=(path[1] / path[0]).log() / 2)
