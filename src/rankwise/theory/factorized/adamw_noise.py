"""Where AdamW hovers under gradient noise: its decay amounts to an L2 penalty of `lam` times the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError, require
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class NoisyAdamW(Experiment):
    """Where AdamW hovers under gradient noise.

    Arguments:
        weights: the solution of `g / sqrt(g^2 + sigma^2) = -lam w`, beside the mean of many runs.
        penalty: `lam` times the gradient's root mean square, `lam sqrt(g^2 + sigma^2)`, beside the L2 coefficient that
            the runs amount to, `-g / w`.
        spread: the standard error of the means.
    """

    weights: SideBySide
    penalty: SideBySide
    spread: Float[Tensor, " p"] = field(kw_only=True)


def noisy_adamw(
    centres: Float[Tensor, " p"],
    *,
    decay: Float[Tensor, " p"] | float,
    noise: Float[Tensor, " p"] | float,
    rate: float = 2e-2,
    steps: int = 3000,
    runs: int = 2048,
    seed: int = 0,
) -> NoisyAdamW:
    """AdamW on `(w - c)^2 / 2` with noisy gradients, beside its fixed point: an L2 penalty of `lam` times the noise.

    In real training the noise dominates, so that decay on factors `A` and `R` presses on their product's nuclear norm
    with about `lam sqrt(sigma_A sigma_R)`, `sigma` being the root mean square of the gradient (torch's
    `exp_avg_sq.sqrt()`). Non-uniform noise breaks the symmetry under rotations: it is no law of the imbalance.

    Arguments:
        centres: `c`, one problem for each.
        decay: `lam`, one for all or one for each.
        noise: `sigma`, the standard deviation of the gradient's noise, likewise.
        rate: the learning rate, which falls to a tenth.
        steps: how many; the last third is averaged.
        runs: of each problem.
        seed: of the noise.

    >>> found = noisy_adamw(torch.tensor([1.0]), decay=0.1, noise=3.0, runs=512)
    >>> found.weights.relative_error < 0.01
    True
    """
    c = torch.as_tensor(centres, dtype=torch.float64)
    lam, sigma = (torch.as_tensor(one, dtype=torch.float64).expand_as(c) for one in (decay, noise))
    if not bool((lam > 0).all() and (sigma > 0).all()):
        raise UserError("noisy AdamW was given a decay or noise that is not positive: give positive numbers")
    generator = torch.Generator().manual_seed(seed)
    weights = torch.zeros(runs, len(c), dtype=torch.float64)
    parameters = [torch.nn.Parameter(weights[:, place].clone()) for place in range(len(c))]
    optimizer = torch.optim.AdamW(
        [{"params": [one], "weight_decay": float(value)} for one, value in zip(parameters, lam, strict=True)],
        lr=rate,
        betas=(0.9, 0.999),
    )
    total, square, counted = torch.zeros_like(weights), torch.zeros_like(weights), 0
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - 0.9 * step / steps)
        drawn = torch.randn(len(c), runs, generator=generator, dtype=torch.float64)
        for place, one in enumerate(parameters):
            one.grad = one.detach() - c[place] + sigma[place] * drawn[place]
        optimizer.step()
        if step >= 2 * steps // 3:
            now = torch.stack([one.detach() for one in parameters], 1)
            total, square, counted = total + now, square + now.square(), counted + 1
    means = total / counted
    mean = means.mean(0)
    root = require("scipy.optimize", extra="theory").brentq
    fixed = [
        root(lambda w, c=c, lam=lam, sigma=sigma: (w - c) / math.hypot(w - c, sigma) + lam * w, -abs(c) - 1, abs(c) + 1)
        for c, lam, sigma in zip(c.tolist(), lam.tolist(), sigma.tolist(), strict=True)
    ]
    predicted = torch.tensor(fixed, dtype=torch.float64)
    return NoisyAdamW(
        SideBySide(predicted, simulated=mean),
        SideBySide(lam * torch.hypot(predicted - c, sigma), simulated=(c - mean) / mean),
        spread=means.std(0) / math.sqrt(runs),
    )
