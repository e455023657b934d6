"""Momentum with decoupled decay: the imbalance and one more matrix obey two linear equations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.factorized.convention import Convention
from rankwise.theory.factorized.losses import MatrixLoss, factors_of
from rankwise.theory.factorized.solving import State, moments, solved
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class BalanceMomentum(Experiment):
    """The imbalance under momentum, from its two equations and from the factors.

    Arguments:
        imbalance: `D = A^T A - R R^T` at every recorded time.
        exchange: `S = H_A^T A + A^T H_A - H_R R^T - R H_R^T`.
        times: of the flow.
        drive: `E = H_A^T H_A - H_R H_R^T`, which enters both from outside.
        bound: `rate |E| / (lam (mu + rate lam))` with the largest `E` of the last half: what `|D|` stays below once the
            start is forgotten, in Frobenius norms.
    """

    imbalance: SideBySide
    exchange: SideBySide
    times: Float[Tensor, " n"] = field(kw_only=True, repr=False)
    drive: Float[Tensor, "n r r"] = field(kw_only=True, repr=False)
    bound: float = field(kw_only=True)


def balance_momentum(
    loss: MatrixLoss,
    left: Float[Tensor, "m r"],
    right: Float[Tensor, "r n"],
    *,
    decay: float,
    rate: float,
    forgetting: float,
    until: float,
    points: int = 101,
) -> BalanceMomentum:
    """The flow of an exponential average of gradients with decoupled decay,

        dH_A = mu (M R^T - H_A),  dH_R = mu (A^T M - H_R),  dA = -rate (H_A + lam A),  dR = -rate (H_R + lam R),

    beside the two equations that close over the imbalance, given `E` (our own; the paper bounds its size instead, with
    an exponent that should read `exp(-2 rate lam t)`):

        dD/dt = -2 rate lam D - rate S,    dS/dt = -(mu + rate lam) S - 2 rate E.

    Arguments:
        loss: of the product.
        left: `A` at the start; its average starts at zero.
        right: `R`.
        decay: `lam`.
        rate: the learning rate, which here is a speed.
        forgetting: `mu`, `1 - beta` for each unit of time.
        until: the last time.
        points: how many times are recorded.

    >>> loss = MatrixLoss.denoising(torch.diag(torch.tensor([1.0, 0.5])))
    >>> law = balance_momentum(loss, torch.eye(2), torch.zeros(2, 2) + 0.1, decay=0.1, rate=0.5, forgetting=0.3,
    ...                        until=20.0)
    >>> law.imbalance.relative_error < 1e-8, law.exchange.relative_error < 1e-8
    (True, True)
    """
    a, r = factors_of(loss, left, right)
    pressure = Convention.HALVED.pressure(decay)
    if not (rate > 0 and forgetting > 0):
        raise UserError(f"a rate of {rate:g} and forgetting {forgetting:g} were given: give positive numbers")
    times = moments(until, points)
    damping = forgetting + rate * pressure

    def slope(state: State) -> State:
        a, r, by_left, by_right, imbalance, exchange = state
        gradient = loss.gradient(a @ r)
        drive = by_left.mT @ by_left - by_right @ by_right.mT
        return (
            -rate * (by_left + pressure * a),
            -rate * (by_right + pressure * r),
            forgetting * (gradient @ r.mT - by_left),
            forgetting * (a.mT @ gradient - by_right),
            -2 * rate * pressure * imbalance - rate * exchange,
            -damping * exchange - 2 * rate * drive,
        )

    first = a.mT @ a - r @ r.mT
    start = (a, r, torch.zeros_like(a), torch.zeros_like(r), first, torch.zeros_like(first))
    a, r, by_left, by_right, imbalance, exchange = solved(slope, start, times)
    drive = by_left.mT @ by_left - by_right @ by_right.mT
    crossed = by_left.mT @ a - by_right @ r.mT
    return BalanceMomentum(
        SideBySide(imbalance, simulated=a.mT @ a - r @ r.mT),
        SideBySide(exchange, simulated=crossed + crossed.mT),
        times=times,
        drive=drive,
        bound=rate * float(drive[points // 2 :].flatten(1).norm(dim=1).max()) / (pressure * damping)
        if pressure
        else float("inf"),
    )
