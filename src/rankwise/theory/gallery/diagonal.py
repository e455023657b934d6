"""The rank paper's Figures 2 (upper row) and 6 to 10: a head with diagonal weights, from ever smaller starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.algorithm import greedy
from rankwise.theory.comparison import compare
from rankwise.theory.gradient_flow import Flow, flow
from rankwise.theory.path import Path
from rankwise.theory.problems.attention_head import HeadToy

POINTS = 301
# How far beyond the last stage the runs go.
BEYOND = 1.06
# The experiment of Figures 9 and 10: what counts as negligible, and the noise on the rest.
THRESHOLD, NOISE = 1e-5, 0.05
EPISODES = 3


def diagonal_figure(
    toy: HeadToy, *, alphas: Sequence[float], stages: int, seed: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Runs at every scale beside the path of their limit, and what perturbations do to the smallest one.

    Arguments:
        toy: the head, its teacher and its start.
        alphas: the largest first.
        stages: of the path that the runs are to cover.
        seed: of the perturbations.
        progress: told what is computed next.
    """
    progress("the greedy path")
    path = greedy(toy.problem, stages=stages)
    if not path.stages:
        raise UserError(f"the toy's greedy path has no stage ({path.reason}): give another seed")
    until = BEYOND * float(path.times[-1])
    times = torch.linspace(0, until, POINTS, dtype=torch.float64)
    runs: list[Flow] = []
    for alpha in alphas:
        progress(f"the diagonal head at alpha = {alpha:g}")
        runs.append(flow(toy.problem, log_alpha=math.log(alpha), start=toy.start, until=until, tolerance=1e-6))
    held = compare(path, runs)
    progress("perturbations")
    return {
        "times": times.tolist(),
        "width": toy.problem.size // 2,
        "teacher": toy.teacher.tolist(),
        "path": [
            {
                "time": stage.time,
                "coordinate": stage.coordinate,
                "name": str(stage.place),
                "sign": stage.sign,
                "dropped": list(stage.dropped),
                "margin": _finite(stage.margin),
                "curvature": _finite(stage.curvature),
                "loss": stage.loss,
                "products": stage.product.tolist(),
            }
            for stage in path.stages
        ],
        "start_loss": path.start.loss,
        "ending": path.reason,
        "runs": [
            _run(run, alpha, times, stage_times, overlap)
            for alpha, run, stage_times, overlap in zip(alphas, runs, held.measured, held.inseparable, strict=True)
        ],
        "perturbations": {
            "alpha": alphas[-1],
            "noise": NOISE,
            "threshold": THRESHOLD,
            "plateaus": _episodes(runs[-1], _on_plateaus(path, runs[-1]), seed),
            "activations": _episodes(runs[-1], _after_activations(path, runs[-1]), seed),
        },
    }


def _run(run: Flow, alpha: float, times: Tensor, stage_times: Tensor, overlap: Tensor) -> dict[str, Any]:
    reached = times.clamp(max=run.times[-1].item())
    return {
        "alpha": alpha,
        "losses": run.losses(reached).tolist(),
        "products": run.at(reached).products.mT.tolist(),
        "stage_times": [_finite(one) for one in stage_times.tolist()],
        "overlap": overlap.tolist(),
        "complete": run.complete,
        "reason": run.reason,
    }


def _on_plateaus(path: Path, run: Flow) -> list[tuple[float, float]]:
    """Moments in the middle of the longest plateaus, and how long the run is watched from there: within them."""
    ends = [*run.stage_times(path).tolist(), run.times[-1].item()]
    gaps = [(late - early, early) for early, late in pairwise(ends) if late > early]
    longest = sorted(sorted(gaps, reverse=True)[:EPISODES], key=lambda one: one[1])
    return [(early + 0.5 * length, 0.4 * length) for length, early in longest]


def _after_activations(path: Path, run: Flow) -> list[tuple[float, float]]:
    """Moments at which a product has just stopped being negligible, and how long its plateau then lasts."""
    products, times = run.products, run.times
    found: list[tuple[float, float]] = []
    ends = [*run.stage_times(path).tolist(), times[-1].item()]
    for stage, early, late in zip(path.stages, ends, ends[1:], strict=False):
        before = (times <= early) & (products[:, stage.coordinate].abs() < THRESHOLD)
        if late > early and bool(before.any()):
            place = int(before.nonzero()[-1]) + 1
            moment = float(times[min(place, len(times) - 1)])
            found.append((moment, early - moment + 0.6 * (late - early)))
    return sorted(sorted(found, key=lambda one: -one[1])[:EPISODES])


def _episodes(run: Flow, moments: Sequence[tuple[float, float]], seed: int) -> list[dict[str, Any]]:
    found = []
    for number, (moment, duration) in enumerate(moments):
        moved = run.perturbed(moment, noise=NOISE, seed=seed + number, duration=duration, threshold=THRESHOLD)
        # Most of what happens happens at once.
        after = duration * torch.linspace(0, 1, 61, dtype=torch.float64).square()
        shared = after.clamp(max=min(moved.times[-1].item(), run.times[-1].item() - moment))
        straight, turned = run.at(moment + shared).products, moved.at(shared).products
        shown = (run.at(moment + shared).products.abs() > THRESHOLD).any(0).nonzero().flatten()
        found.append(
            {
                "time": moment,
                "times": (moment + shared).tolist(),
                "coordinates": shown.tolist(),
                "unperturbed": straight[:, shown].mT.tolist(),
                "perturbed": turned[:, shown].mT.tolist(),
                "distance": float((straight[-1] - turned[-1]).abs().max()),
            }
        )
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
