"""Gradient flow of two decayed factors: the imbalance decays as it must, and the gap with it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.theory.factorized.convention import Convention
from rankwise.theory.factorized.gap import gap_bounds
from rankwise.theory.factorized.losses import MatrixLoss, factors_of
from rankwise.theory.factorized.solving import TOLERANCE, State, moments, solved
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float


class Penalty(Enum):
    """What is charged: the factors (weight decay), their product (Frobenius decay), or nothing."""

    FACTORS = "factors"
    PRODUCT = "product"
    NONE = "none"


@dataclass(frozen=True)
class BalanceFlow(Experiment):
    """What gradient flow does to the imbalance `D = A^T A - R R^T` and to the gap, at every recorded time.

    Arguments:
        imbalance: `D(0) exp(-2 lam t)`, entry by entry, beside the flow's; under Frobenius decay `D(0)`.
        times: of the flow.
        left: the factor `A` then.
        right: the factor `R`.
        gap: half-sum minus nuclear norm.
        upper: what it stays below: `|D(0)|_* exp(-2 lam t) / 2`, without any assumption that the factors are bounded.
        lower: what it stays above.
        paper: the paper's own bound, which falls half as fast and needs the factors.
        pressure: `lam`, the coefficient of the nuclear norm.
    """

    imbalance: SideBySide
    times: Float[Tensor, " n"] = field(kw_only=True, repr=False)
    left: Float[Tensor, "n m r"] = field(kw_only=True, repr=False)
    right: Float[Tensor, "n r k"] = field(kw_only=True, repr=False)
    gap: Float[Tensor, " n"] = field(kw_only=True, repr=False)
    upper: Float[Tensor, " n"] = field(kw_only=True, repr=False)
    lower: Float[Tensor, " n"] = field(kw_only=True, repr=False)
    paper: Float[Tensor, " n"] = field(kw_only=True, repr=False)
    pressure: float = field(kw_only=True)

    @property
    def gap_rates(self) -> Float[Tensor, " n-1"]:
        """How fast the logarithm of the gap falls between recorded times: late, from `2 lam` to `4 lam`."""
        return -self.gap.log().diff() / self.times.diff()

    @property
    def singular_values(self) -> Float[Tensor, "n k"]:
        """Of the product, at every recorded time."""
        return torch.linalg.svdvals(self.left @ self.right)


def balance_flow(
    loss: MatrixLoss,
    left: Float[Tensor, "m r"],
    right: Float[Tensor, "r n"],
    *,
    decay: float,
    until: float,
    convention: Convention = Convention.HALVED,
    penalty: Penalty = Penalty.FACTORS,
    points: int = 101,
    tolerance: float = TOLERANCE,
) -> BalanceFlow:
    """Gradient flow `dA/dt = -(M R^T + lam A)`, `dR/dt = -(A^T M + lam R)` on any smooth loss, beside its exact law.

    The terms of the loss are the same in the derivatives of `A^T A` and `R R^T`, so `dD/dt = -2 lam D` (Lemma B.1 of
    arXiv 2410.23819). Frobenius decay is a loss of the product: it leaves `D` alone, and so does no decay.

    Arguments:
        loss: of the product.
        left: `A` at the start.
        right: `R`.
        decay: the coefficient, read by the convention.
        until: the last time.
        convention: whether the penalty carries a half; under Frobenius decay it is always `decay |A R|_F^2 / 2`.
        penalty: what is charged.
        points: how many times are recorded.
        tolerance: of the solver, relative.

    >>> loss = MatrixLoss.denoising(torch.diag(torch.tensor([1.0, 0.5])))
    >>> law = balance_flow(loss, torch.eye(2), torch.zeros(2, 2) + 0.1, decay=0.2, until=10.0)
    >>> law.imbalance.relative_error < 1e-9, bool((law.gap <= law.upper * (1 + 1e-9)).all())
    (True, True)
    """
    start = factors_of(loss, left, right)
    times = moments(until, points)
    pressure = convention.pressure(decay) if penalty is Penalty.FACTORS else 0.0
    ridge = Convention.HALVED.pressure(decay) if penalty is Penalty.PRODUCT else 0.0

    def slope(factors: State) -> State:
        a, r = factors
        product = a @ r
        force = -loss.gradient(product) - ridge * product
        return force @ r.mT - pressure * a, a.mT @ force - pressure * r

    a, r = solved(slope, start, times, tolerance=tolerance)
    imbalance = a.mT @ a - r @ r.mT
    shrinking = (-2 * pressure * times).exp()
    bounds = gap_bounds(a, r)
    return BalanceFlow(
        SideBySide(imbalance[0] * shrinking[:, None, None], simulated=imbalance),
        times=times,
        left=a,
        right=r,
        gap=bounds.gap.simulated,
        upper=bounds.imbalance[0] * shrinking / 2,
        lower=bounds.lower,
        paper=bounds.paper,
        pressure=pressure,
    )


def half_life(decay: float, convention: Convention = Convention.HALVED) -> float:
    """How long the imbalance takes to halve under gradient flow: `log 2 / (2 lam)`.

    >>> round(half_life(0.1), 4), round(half_life(0.1, Convention.WHOLE), 4)
    (3.4657, 1.7329)
    """
    pressure = convention.pressure(decay)
    return math.log(2) / (2 * pressure) if pressure else math.inf
