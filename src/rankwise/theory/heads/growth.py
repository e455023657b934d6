"""What an optimizer makes of exponential growth: e-foldings in a step, or the reason why there is no such number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Growth:
    """The settings of gradient descent that decide how fast an unstable direction grows.

    Arguments:
        rate: the learning rate; None for gradient flow.
        momentum: heavy-ball.
        decay: coupled, as in `torch.optim.SGD(weight_decay=...)`.
    """

    rate: float | None
    momentum: float = 0.0
    decay: float = 0.0

    def foldings(self, sigma: float) -> float:
        """E-foldings in a step at a rate of growth `sigma`: `log(1 + rate sigma)`, and with momentum the larger root of

            x^2 - (1 + momentum + rate (sigma - decay)) x + momentum = 0.

        >>> round(Growth(0.1).foldings(1.0), 6) == round(math.log(1.1), 6), round(Growth(0.01, 0.9).foldings(0.1), 4)
        (True, 0.0092)
        """
        half = (1 + self.momentum + (self.rate or 0.0) * (sigma - self.decay)) / 2
        return math.log(half + math.sqrt(max(half**2 - self.momentum, 0.0)))


def growth_per_step(optimizer: torch.optim.Optimizer | None, parameters: Sequence[Tensor]) -> Growth | str:
    """How an optimizer lets these parameters grow, or the reason why there is no such law.

    >>> weight = torch.nn.Parameter(torch.zeros(1))
    >>> growth_per_step(torch.optim.SGD([weight], lr=0.5), [weight])
    Growth(rate=0.5, momentum=0.0, decay=0.0)
    """
    if optimizer is None:
        return Growth(None)
    if not isinstance(optimizer, torch.optim.SGD):
        return (
            f"no times under {type(optimizer).__name__}: an update that does not grow with the gradient moves tiny "
            "weights at once, and stage times do not grow with log(1/alpha)"
        )
    settings = []
    for parameter in parameters:
        groups = [group for group in optimizer.param_groups if any(one is parameter for one in group["params"])]
        settings += [_settings(group) for group in groups] or [None]
    if None in settings or len(set(settings)) > 1:
        return "no times where the factors of a product are in groups of different settings, or in none"
    return settings[0]


def _settings(group: dict[str, Any]) -> Growth:
    return Growth(float(group["lr"]), momentum=float(group["momentum"]), decay=float(group["weight_decay"]))
