"""What each way of decaying does to singular values, in closed form: soft thresholds, ridges, Schatten quasi-norms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError, require
from rankwise.theory.factorized.convention import checked_decay

if TYPE_CHECKING:
    from jaxtyping import Float


def soft_threshold(values: Float[Tensor, "*k"], pressure: float) -> Float[Tensor, "*k"]:
    """`max(s - lam, 0)`: the minimizer of `(t - s)^2 / 2 + lam t`, decay on two factors.

    >>> soft_threshold(torch.tensor([1.0, 0.5]), 0.75).tolist()
    [0.25, 0.0]
    """
    return (values.double() - checked_decay(pressure)).clamp_min(0)


def ridge(values: Float[Tensor, "*k"], pressure: float) -> Float[Tensor, "*k"]:
    """`s / (1 + lam)`: the minimizer of `(t - s)^2 / 2 + lam t^2 / 2`, decay on a single matrix or on the product.

    No value becomes zero: the rank stays what it was.

    >>> ridge(torch.tensor([1.0, 0.5]), 1.0).tolist()
    [0.5, 0.25]
    """
    return values.double() / (1 + checked_decay(pressure))


def schatten_shrinkage(values: Float[Tensor, " k"], pressure: float, *, factors: int) -> Float[Tensor, " k"]:
    """The minimizer of `(t - s)^2 / 2 + (lam L / 2) t^(2/L)`: decay `(lam / 2) sum |A_l|^2` on a chain of `L` factors.

    One factor is the ridge, two are the soft threshold. From three on, values jump to zero at

        s = t + lam t^(2/L - 1)    with    t = (lam (L - 2))^(L / (2 L - 2)),

    nearer to the rank, and with less bias on what stays: it solves `t - s + lam t^(2/L - 1) = 0`, the larger root.

    >>> found = schatten_shrinkage(torch.tensor([3.0, 1.9]).double(), 1.0, factors=3)
    >>> [round(value, 4) for value in found.tolist()]
    [2.2352, 0.0]
    """
    values, lam = torch.as_tensor(values, dtype=torch.float64), checked_decay(pressure)
    if factors < 1:
        raise UserError(f"a chain of {factors} factors was given: give at least 1")
    if factors == 1:
        return ridge(values, lam)
    if factors == 2 or not lam:
        return soft_threshold(values, lam)
    jump = (lam * (factors - 2)) ** (factors / (2 * factors - 2))
    worth = values >= jump + lam * jump ** (2 / factors - 1)
    return torch.where(worth, live_values(values, lam, factors=factors), 0.0)


def live_values(values: Float[Tensor, " k"], pressure: float, *, factors: int) -> Float[Tensor, " k"]:
    """The local minimum away from zero for each value of the target, or zero where there is none.

    On three and more factors zero is a local minimum as well, so that between the `vanishing_point` and the threshold
    of `schatten_shrinkage` it is the start that decides.

    >>> live_values(torch.tensor([1.9]).double(), 1.0, factors=3) > 0
    tensor([True])
    """
    values, lam = torch.as_tensor(values, dtype=torch.float64), checked_decay(pressure)
    if factors <= 2 or not lam:
        return schatten_shrinkage(values, lam, factors=factors)
    power = 2 / factors - 1
    turning = (-lam * power) ** (1 / (1 - power))
    least = vanishing_point(lam, factors=factors)
    root = require("scipy.optimize", extra="theory").brentq

    def live(s: float) -> float:
        return float(root(lambda t: t - s + lam * t**power, turning, s, xtol=1e-15)) if s > least else 0.0

    return torch.tensor([live(s) for s in values.flatten().tolist()], dtype=torch.float64).view(values.shape)


def vanishing_point(pressure: float, *, factors: int) -> float:
    """Below which a value of the target has no live stationary point at all on a chain of `L` factors.

    >>> vanishing_point(1.0, factors=2), round(vanishing_point(1.0, factors=3), 4)
    (1.0, 1.7548)
    """
    lam = checked_decay(pressure)
    if factors < 2:
        raise UserError(f"a chain of {factors} factors was given: values vanish for 2 and more")
    if factors == 2 or not lam:
        return lam
    turning = (lam * (1 - 2 / factors)) ** (factors / (2 * factors - 2))
    return turning + lam * turning ** (2 / factors - 1)
