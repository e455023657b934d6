"""The rank paper's Figure 2 (lower row): the same task for a head with full matrices, one singular value at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rankwise.theory.heads.losses import HeadLoss
from rankwise.theory.heads.simulation import head_descent
from rankwise.theory.problems.attention_head import HeadToy

POINTS = 241
# A step of gradient descent multiplies the first direction by one more than this.
STEP = 0.03
# How many times as long as the first escape the runs last, from the smallest scale that is worth its time here.
UNTIL, SMALLEST = 4.0, 1e-8
SHOWN = 10


def matrix_figure(
    toy: HeadToy, *, alphas: Sequence[float], seed: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Gradient descent on the four matrices of a head that learns what the diagonal teacher writes.

    Near zero values and outputs grow like `exp(sigma_1 t)`, `sigma_1` the largest singular value of their gradient, so
    the first direction escapes at `1 / sigma_1` in rescaled time; keys and queries wait for it.

    Arguments:
        toy: the task.
        alphas: the largest first; those below 1e-8 are left out, they would only take longer.
        seed: of the start.
        progress: told what is computed next.
    """
    loss, width = HeadLoss(toy.inputs, toy.targets), toy.inputs.shape[-1]
    zero = torch.zeros(width, width, dtype=torch.float64)
    sigma = float(torch.linalg.matrix_norm(loss.gradient((zero, zero))[1], 2))
    rate = STEP / sigma
    generator = torch.Generator().manual_seed(seed)
    left, right, value, output = torch.randn(4, width, width, generator=generator, dtype=torch.float64) / width**0.5
    chosen = [one for one in alphas if one >= SMALLEST] or [alphas[0]]
    runs = []
    for alpha in chosen:
        progress(f"the head with full matrices at alpha = {alpha:g}")
        steps = math.ceil(UNTIL * -math.log(alpha) / STEP)
        run = head_descent(
            loss,
            [(left, right), (output, value)],
            log_alpha=math.log(alpha),
            rate=rate,
            steps=steps,
            every=max(1, steps // POINTS),
        )
        runs.append(
            {
                "alpha": alpha,
                "times": (run.times / run.span).tolist(),
                "losses": run.losses.tolist(),
                "values": {name: values[:, :SHOWN].mT.tolist() for name, values in run.values.items()},
                "steps": steps,
            }
        )
    return {"rate": rate, "escape": rate / math.log1p(STEP), "teacher": _spectra(toy.teacher), "runs": runs}


def _spectra(teacher: Tensor) -> dict[str, list[float]]:
    """The singular values that are to be learned."""
    parts = zip(("QK", "OV"), teacher.chunk(2), strict=True)
    return {name: part.abs().sort(descending=True).values[:SHOWN].tolist() for name, part in parts}
