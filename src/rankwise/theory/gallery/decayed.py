"""The weight-decay paper's Figure 1: two 5x5 matrices under decay, their balance, their gap, their singular values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rankwise.theory.factorized.losses import MatrixLoss
from rankwise.theory.factorized.shrinkage import soft_threshold
from rankwise.theory.factorized.stepping import balance_descent
from rankwise.theory.heads.losses import SingleProduct
from rankwise.theory.heads.simulation import head_descent

TARGET = (1.0, 0.8, 0.6, 0.4, 0.2)
# The paper writes the loss without a half: its curvature is 2, and a value s vanishes from a decay of 2 s on.
SCALE = 1.0
SPREAD, RATE, STEPS, EVERY = 0.5, 0.05, 600, 5


def decay_figure(*, decays: Sequence[float], seed: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Gradient descent on `|A R - D|^2 + (lam / 2)(|A|^2 + |R|^2)` for each decay, beside what is known of it.

    The imbalance of `A^T A` and `R R^T` follows an exact law of its own; the gap between half-sum and nuclear norm
    goes with it; the singular values end at those of `D`, less `lam / 2`, or at zero.

    Arguments:
        decays: `lam`.
        seed: of the start, whose entries have standard deviation one half.
        progress: told what is computed next.
    """
    generator = torch.Generator().manual_seed(seed)
    left, right = torch.randn(2, 5, 5, generator=generator, dtype=torch.float64)
    target = torch.tensor(TARGET, dtype=torch.float64)
    loss = MatrixLoss.denoising(torch.diag(target), scale=SCALE)
    runs = []
    for decay in decays:
        progress(f"two matrices at decay {decay:g}")
        law = balance_descent(loss, SPREAD * left, SPREAD * right, decay=decay, rate=RATE, steps=STEPS, every=EVERY)
        way = head_descent(
            SingleProduct(loss),
            [(left, right)],
            log_alpha=math.log(SPREAD),
            rate=RATE,
            steps=STEPS,
            decay=decay,
            every=EVERY,
        )
        runs.append(
            {
                "decay": decay,
                "times": (law.steps * RATE).tolist(),
                "imbalance": law.imbalance.simulated.flatten(1).norm(dim=1).tolist(),
                "law": law.imbalance.predicted.flatten(1).norm(dim=1).tolist(),
                "gap": law.gap.clamp_min(0).tolist(),
                "values": way.values["product"].mT.tolist(),
                "end": way.values["product"][-1].tolist(),
                "predicted": soft_threshold(target, decay / (2 * SCALE)).tolist(),
            }
        )
    return {"target": list(TARGET), "rate": RATE, "steps": STEPS, "runs": runs}
