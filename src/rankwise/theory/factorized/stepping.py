"""Gradient descent of two decayed factors: the exact law of the imbalance, step by step, noise included."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.factorized.convention import Convention
from rankwise.theory.factorized.gap import gap_bounds
from rankwise.theory.factorized.losses import MatrixLoss, factors_of
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float

# Below this share of the Gram matrices the imbalance of stored factors is rounding.
VISIBLE = 1e-8


@dataclass(frozen=True)
class BalanceDescent(Experiment):
    """What gradient descent does to the imbalance `D = A^T A - R R^T`.

    Arguments:
        imbalance: `D` after every recorded step from the law alone, beside that of the factors.
        late_slope: `log(1 - 2 rate lam) / rate`, the logarithm's slope near an equilibrium of live directions, beside
            that of the last quarter of the steps on which `|D|` is more than rounding.
        steps: the recorded ones.
        gap: half-sum minus nuclear norm then.
        left: the last factor `A`.
        right: the last `R`.
        shrunk: `(1 - rate lam)^(2 steps)`, what decay alone leaves of the imbalance.
        residual: `rate |R M^T M R^T - A^T M M^T A|_F / (2 lam)` at the last step: where the imbalance of finite steps
            settles, at most; infinite without decay.
    """

    imbalance: SideBySide
    late_slope: SideBySide
    steps: Float[Tensor, " n"] = field(kw_only=True, repr=False)
    gap: Float[Tensor, " n"] = field(kw_only=True, repr=False)
    left: Float[Tensor, "m r"] = field(kw_only=True, repr=False)
    right: Float[Tensor, "r k"] = field(kw_only=True, repr=False)
    shrunk: float = field(kw_only=True)
    residual: float = field(kw_only=True)


def balance_descent(
    loss: MatrixLoss,
    left: Float[Tensor, "m r"],
    right: Float[Tensor, "r n"],
    *,
    decay: float,
    rate: float,
    steps: int,
    convention: Convention = Convention.HALVED,
    noise: float = 0.0,
    seed: int = 0,
    every: int = 1,
) -> BalanceDescent:
    """Gradient descent or its stochastic kin on `A` and `R`, beside the exact law

        D' = (1 - rate lam)^2 D + rate^2 (R M^T M R^T - A^T M M^T A).

    It holds for any matrix `M`, exact gradient or not, because the cross terms cancel; without momentum coupled and
    decoupled decay are the same.

    Arguments:
        loss: of the product.
        left: `A` at the start.
        right: `R`.
        decay: the coefficient, read by the convention.
        rate: the learning rate.
        steps: how many.
        convention: whether the penalty carries a half.
        noise: the standard deviation of what is added to every entry of `M` in every step.
        seed: of the noise.
        every: record after so many steps.

    >>> loss = MatrixLoss.denoising(torch.diag(torch.tensor([1.0, 0.5])))
    >>> law = balance_descent(loss, torch.eye(2), torch.zeros(2, 2) + 0.1, decay=0.1, rate=0.1, steps=400)
    >>> law.imbalance.error < 1e-14, round(law.late_slope.predicted.item(), 5), law.late_slope.relative_error < 1e-3
    (True, -0.20203, True)
    """
    a, r = factors_of(loss, left, right)
    pressure = convention.pressure(decay)
    _check_steps(rate, pressure, steps, every)
    if not noise >= 0:
        raise UserError(f"noise of {noise:g} was given: give a standard deviation, not negative")
    generator = torch.Generator().manual_seed(seed)
    shrink = 1 - rate * pressure
    predicted = a.mT @ a - r @ r.mT
    at, lefts, rights, laws, difference = [0], [a], [r], [predicted], predicted
    for step in range(1, steps + 1):
        force = loss.gradient(a @ r)
        if noise:
            force = force + noise * torch.randn(force.shape, generator=generator, dtype=torch.float64)
        by_left, by_right = force @ r.mT, a.mT @ force
        difference = by_left.mT @ by_left - by_right @ by_right.mT
        predicted = shrink**2 * predicted + rate**2 * difference
        a, r = shrink * a - rate * by_left, shrink * r - rate * by_right
        if step % every == 0 or step == steps:
            at.append(step)
            lefts.append(a)
            rights.append(r)
            laws.append(predicted)
    if not bool(a.isfinite().all() and r.isfinite().all()):
        raise UserError(f"gradient descent at rate {rate:g} diverged within {steps} steps: give a smaller rate")
    left_path, right_path, recorded = torch.stack(lefts), torch.stack(rights), torch.tensor(at, dtype=torch.float64)
    found = left_path.mT @ left_path - right_path @ right_path.mT
    slope = _late_slope(recorded * rate, found, left_path)
    settled = rate * float(difference.norm()) / (2 * pressure) if pressure else math.inf
    return BalanceDescent(
        SideBySide(torch.stack(laws), simulated=found),
        SideBySide(slope.new_tensor(math.log1p(-2 * rate * pressure) / rate), simulated=slope),
        steps=recorded,
        gap=gap_bounds(left_path, right_path).gap.simulated,
        left=a,
        right=r,
        shrunk=shrink ** (2 * steps),
        residual=settled,
    )


def _late_slope(times: Tensor, imbalance: Tensor, left: Tensor) -> Tensor:
    sizes, grams = (torch.linalg.matrix_norm(one) for one in (imbalance, left.mT @ left))
    visible = int((sizes > VISIBLE * grams).sum())
    if visible < 4 or not bool((sizes[:visible] > VISIBLE * grams[:visible]).all()):
        return times.new_tensor(math.nan)
    first, last = visible - max(visible // 4, 2), visible - 1
    return (sizes[last] / sizes[first]).log() / (times[last] - times[first])


def _check_steps(rate: float, pressure: float, steps: int, every: int) -> None:
    if not (rate > 0 and 2 * rate * pressure < 1):
        raise UserError(
            f"a rate of {rate:g} was given: give a positive one below {0.5 / pressure if pressure else math.inf:g}, "
            "where decay alone no longer overshoots"
        )
    if steps < 1 or every < 1:
        raise UserError(f"{steps} steps, recorded every {every}, were asked for: give positive numbers")
