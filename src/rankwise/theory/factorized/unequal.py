"""Factors that are not treated alike: two decays, two learning rates, or decay on one factor alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.factorized.convention import Convention
from rankwise.theory.factorized.losses import MatrixLoss, factors_of, matrix, random_factors
from rankwise.theory.factorized.shrinkage import soft_threshold
from rankwise.theory.factorized.solving import State, moments, solved
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class UnequalDecay(Experiment):
    """The equilibrium of `|A R - target|^2 / 2 + (lam_A |A|^2 + lam_R |R|^2) / 2`.

    Arguments:
        values: the target's singular values less `sqrt(lam_A lam_R)`, beside the flow's end.
        balance: `lam_A A^T A`, beside `lam_R R R^T`, which it equals there.
        threshold: `sqrt(lam_A lam_R)`.
    """

    values: SideBySide
    balance: SideBySide
    threshold: float = field(kw_only=True)


def unequal_decay(
    target: Float[Tensor, "m n"],
    *,
    left_decay: float,
    right_decay: float,
    until: float = 400.0,
    start: float = 0.5,
    seed: int = 0,
) -> UnequalDecay:
    """Follow the flow of two factors with two decays to its equilibrium: the product feels their geometric mean.

    Over all factorizations of `W` the least `(lam_A |A|^2 + lam_R |R|^2) / 2` is `sqrt(lam_A lam_R) |W|_*`.

    >>> found = unequal_decay(torch.diag(torch.tensor([1.0, 0.5])), left_decay=0.1, right_decay=0.4)
    >>> round(found.threshold, 6), found.values.error < 1e-6, found.balance.error < 1e-6
    (0.2, True, True)
    """
    wanted = matrix(target, "the target")
    decays = Convention.HALVED.pressure(left_decay), Convention.HALVED.pressure(right_decay)
    threshold = math.sqrt(decays[0] * decays[1])
    if not threshold:
        raise UserError("decay on one factor alone has no equilibrium, it drifts: see one_sided_decay")

    def slope(factors: State) -> State:
        a, r = factors
        force = wanted - a @ r
        return force @ r.mT - decays[0] * a, a.mT @ force - decays[1] * r

    shape = wanted.shape[0], wanted.shape[1]
    first = random_factors(shape, rank=min(shape), scale=start, seed=seed)
    a, r = (one[-1] for one in solved(slope, first, moments(until, 2)))
    return UnequalDecay(
        SideBySide(soft_threshold(torch.linalg.svdvals(wanted), threshold), simulated=torch.linalg.svdvals(a @ r)),
        SideBySide(decays[0] * a.mT @ a, simulated=decays[1] * r @ r.mT),
        threshold=threshold,
    )


@dataclass(frozen=True)
class OneSidedDecay(Experiment):
    """What decay on one factor alone does in the long run to each singular direction.

    Arguments:
        values: of the product, from the adiabatic law and from the flow, `[n, k]`.
        decayed: the amplitude of the factor that decays.
        free: that of the factor that does not.
        times: of the record.
    """

    values: SideBySide
    decayed: SideBySide
    free: SideBySide
    times: Float[Tensor, " n"] = field(kw_only=True)


def one_sided_decay(
    values: Float[Tensor, " k"], *, decay: float, times: Float[Tensor, " n"], start: float = 1.0
) -> OneSidedDecay:
    """Decay on the left amplitude `a` of each direction with target value `s`, none on the right `b`: it drifts.

    Once `a b` is near `s`, what is missing follows the amplitudes, and the free one grows by it (our adiabatic law):

        s - a b = lam a b / (a^2 + b^2),    db/dt = (s - a b) a,    so late    b ~ (4 lam s^2 t)^(1/4).

    So turning decay off for one of two factors does not halve the pressure on rank: it ends it, slowly, as
    `sqrt(lam / (4 t))`, and leaves norms that drift apart.

    Arguments:
        values: the target's singular values, all positive.
        decay: `lam`, on the left factor.
        times: when to record, increasing; the law counts from the first, which should be several units of time.
        start: both amplitudes at time 0.

    >>> found = one_sided_decay(torch.tensor([1.0]), decay=0.2, times=torch.tensor([20.0, 220.0, 2220.0]))
    >>> [round(value, 3) for value in found.values.simulated.flatten().tolist()], found.values.error < 1e-3
    ([0.95, 0.985, 0.995], True)
    """
    s = torch.as_tensor(values, dtype=torch.float64)
    lam, at = Convention.HALVED.pressure(decay), torch.as_tensor(times, dtype=torch.float64)
    if s.ndim != 1 or not bool((s > 0).all()) or not lam or not start > 0:
        raise UserError("one-sided decay needs positive singular values, a positive decay and a positive start")
    if at.ndim != 1 or len(at) < 2 or not bool((at.diff() > 0).all()) or not float(at[0]) > 0:
        raise UserError(f"times {at.tolist()} were given: give two or more, positive and increasing")

    def slope(amplitudes: State) -> State:
        a, b = amplitudes
        missing = s - a * b
        return missing * b - lam * a, missing * a

    def adiabatic(state: State) -> State:
        (b,) = state
        missing = _missing(s, lam, b)
        return (missing * (s - missing) / b,)

    first = torch.full_like(s, start)
    recorded = solved(slope, (first, first), torch.cat([at.new_zeros(1), at]), method="LSODA")
    a, b = (one[1:] for one in recorded)
    (free,) = solved(adiabatic, (b[0],), at - at[0], method="LSODA")
    missing = _missing(s, lam, free)
    return OneSidedDecay(
        SideBySide(s - missing, simulated=a * b),
        SideBySide((s - missing) / free, simulated=a),
        SideBySide(free, simulated=b),
        times=at,
    )


def _missing(s: Tensor, lam: float, free: Tensor) -> Tensor:
    """What a settled product lacks at a free amplitude `b`: `e (a^2 + b^2) = lam a b`, `a = (s - e) / b`."""
    found = torch.zeros_like(s)
    for _ in range(50):
        found = lam * (s - found) / (free.square() + ((s - found) / free).square())
    return found


@dataclass(frozen=True)
class UnequalRates(Experiment):
    """The imbalance under two learning rates, `Q = A^T A / eta_A - R R^T / eta_R`.

    Arguments:
        imbalance: `Q(0) exp(-2 k t)` with `k = eta_A lam_A`, beside the flow's.
        closed: whether the law applies: `eta_A lam_A = eta_R lam_R`. Otherwise there is none, and the error says so.
        times: of the flow.
    """

    imbalance: SideBySide
    closed: bool = field(kw_only=True)
    times: Float[Tensor, " n"] = field(kw_only=True, repr=False)


def unequal_rates(
    loss: MatrixLoss,
    left: Float[Tensor, "m r"],
    right: Float[Tensor, "r n"],
    *,
    rates: tuple[float, float],
    decays: tuple[float, float],
    until: float,
    points: int = 51,
) -> UnequalRates:
    """The flow `dA/dt = -eta_A (M R^T + lam_A A)`, `dR/dt = -eta_R (A^T M + lam_R R)`, beside the law of its imbalance.

    >>> loss = MatrixLoss.denoising(torch.diag(torch.tensor([1.0, 0.5])))
    >>> factors = torch.eye(2), 0.1 + torch.zeros(2, 2)
    >>> law = unequal_rates(loss, *factors, rates=(1.0, 4.0), decays=(0.2, 0.05), until=5.0)
    >>> law.closed, law.imbalance.relative_error < 1e-9
    (True, True)
    """
    a, r = factors_of(loss, left, right)
    pressures = tuple(Convention.HALVED.pressure(one) for one in decays)
    if not min(rates) > 0:
        raise UserError(f"rates {rates} were given: give two positive numbers")
    speeds = rates[0] * pressures[0], rates[1] * pressures[1]
    times = moments(until, points)

    def slope(factors: State) -> State:
        a, r = factors
        gradient = loss.gradient(a @ r)
        return -rates[0] * gradient @ r.mT - speeds[0] * a, -rates[1] * a.mT @ gradient - speeds[1] * r

    a, r = solved(slope, (a, r), times)
    found = a.mT @ a / rates[0] - r @ r.mT / rates[1]
    return UnequalRates(
        SideBySide(found[0] * (-2 * speeds[0] * times).exp()[:, None, None], simulated=found),
        closed=math.isclose(*speeds, rel_tol=1e-9),
        times=times,
    )
