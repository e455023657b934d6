"""One step of any optimizer: what it does to the imbalance, exactly; and what noise does, on average."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.factorized.convention import Convention
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class UpdateLaw(Experiment):
    """The imbalance after one step of any optimizer with decoupled decay, from the law and from the factors.

    Arguments:
        imbalance: after the step.
        decayed: what decay alone would have left.
        twist: what the update adds at first order: zero for gradients, not for Adam's, sign or orthogonal updates.
    """

    imbalance: SideBySide
    decayed: Float[Tensor, "r r"] = field(kw_only=True, repr=False)
    twist: Float[Tensor, "r r"] = field(kw_only=True, repr=False)


def balance_after(
    left: Float[Tensor, "m r"],
    right: Float[Tensor, "r n"],
    update_left: Float[Tensor, "m r"],
    update_right: Float[Tensor, "r n"],
    *,
    decay: float,
    rate: float,
) -> UpdateLaw:
    """One step `A - rate (U + lam A)`, `R - rate (V + lam R)` of any optimizer, beside

        D' = (1 - rate lam)^2 D - rate (1 - rate lam) [A^T U + U^T A - R V^T - V R^T] + rate^2 [U^T U - V V^T].

    >>> one = torch.ones(2, 1)
    >>> balance_after(one, one.T, one, 2 * one.T, decay=0.1, rate=0.1).imbalance.error < 1e-15
    True
    """
    a, r, u, v = (one.detach().double() for one in (left, right, update_left, update_right))
    if a.shape != u.shape or r.shape != v.shape or a.shape[1] != r.shape[0]:
        raise UserError(
            f"factors of shapes {tuple(a.shape)} and {tuple(r.shape)} were given updates of {tuple(u.shape)} and "
            f"{tuple(v.shape)}: give one of its own shape for each"
        )
    shrink = 1 - rate * Convention.HALVED.pressure(decay)
    decayed = shrink**2 * (a.mT @ a - r @ r.mT)
    twist = -rate * shrink * (a.mT @ u + u.mT @ a - r @ v.mT - v @ r.mT)
    new_left, new_right = shrink * a - rate * u, shrink * r - rate * v
    return UpdateLaw(
        SideBySide(
            decayed + twist + rate**2 * (u.mT @ u - v @ v.mT),
            simulated=new_left.mT @ new_left - new_right @ new_right.mT,
        ),
        decayed=decayed,
        twist=twist,
    )


@dataclass(frozen=True)
class NoiseLaw(Experiment):
    """What one step of pure gradient noise does to the imbalance on average.

    Arguments:
        imbalance: the expectation, beside the mean of many draws.
        spread: the standard error of that mean, entry by entry.
    """

    imbalance: SideBySide
    spread: Float[Tensor, "r r"] = field(kw_only=True, repr=False)

    @property
    def deviations(self) -> float:
        """By how many standard errors the worst entry is off: a few at most."""
        return float(((self.imbalance.simulated - self.imbalance.predicted).abs() / self.spread).max())


def balance_under_noise(
    left: Float[Tensor, "m r"],
    right: Float[Tensor, "r n"],
    *,
    decay: float,
    rate: float,
    noise: float,
    draws: int = 20_000,
    seed: int = 0,
) -> NoiseLaw:
    """One step with `M` of independent entries of standard deviation `noise`, beside its expectation

        E D' = (1 - rate lam)^2 D + rate^2 noise^2 (m R R^T - n A^T A):

    for square products `((1 - rate lam)^2 - n rate^2 noise^2) D`. Noise balances by itself, even without decay.

    >>> found = balance_under_noise(torch.eye(3), 2 * torch.eye(3), decay=0.0, rate=0.1, noise=1.0, draws=500)
    >>> found.deviations < 5
    True
    """
    a, r = left.detach().double(), right.detach().double()
    if draws < 2:
        raise UserError(f"{draws} draws were asked for: give at least 2, for a mean with an error")
    generator = torch.Generator().manual_seed(seed)
    force = noise * torch.randn(draws, a.shape[0], r.shape[1], generator=generator, dtype=torch.float64)
    shrink = 1 - rate * Convention.HALVED.pressure(decay)
    new_left, new_right = shrink * a - rate * force @ r.mT, shrink * r - rate * a.mT @ force
    found = new_left.mT @ new_left - new_right @ new_right.mT
    grams = a.mT @ a, r @ r.mT
    expected = shrink**2 * (grams[0] - grams[1]) + (rate * noise) ** 2 * (a.shape[0] * grams[1] - r.shape[1] * grams[0])
    return NoiseLaw(SideBySide(expected, simulated=found.mean(0)), spread=found.std(0) / math.sqrt(draws))


def shrink_factor(decay: float, rates: Float[Tensor, " steps"]) -> float:
    """What a whole schedule of decoupled decay leaves of the imbalance: `prod (1 - rate_t lam)^2`.

    Updates that are gradients add what is of second order in the rate; those of Adam can add more.

    >>> round(shrink_factor(0.1, torch.full((1000,), 3e-3)), 4)
    0.5488
    """
    return float((-rates.double() * Convention.HALVED.pressure(decay)).log1p().sum().mul(2).exp())
