"""How fast the theory lab is: flows at tiny initialization, and the paper's toy of one attention head, in one run.

    python benchmarks/theory.py

The toy has width 50, 10 tokens, 1,000 samples: 100 products. Euler is gradient descent on the raw weights in float64
with the same gradients; both are held against a flow of tight tolerance, and Euler is given so many steps that it takes
several times as long: where it is still less accurate, the ratio of times is a lower bound at equal accuracy. The ratio
is of processor time, which a busy machine does not change; with --threads 1 none of it is spent on waiting.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from rankwise import theory

ALPHAS = (1e-1, 1e-2, 1e-4, 1e-8, 1e-16, 1e-32)
UNTIL = 4.0
Answer = TypeVar("Answer")


def small_problem() -> tuple[theory.Problem, tuple[Tensor, Tensor]]:
    """Five correlated coefficients, all of which end up active."""
    draw = np.random.default_rng(0)
    mixing = 0.25 * draw.normal(size=(5, 5))
    covariance = torch.tensor(np.eye(5) + (mixing + mixing.T) / 2)
    start = torch.tensor(draw.normal(size=5)), torch.tensor(draw.normal(size=5))
    return theory.diagonal_linear(covariance, torch.tensor([2.0, -1.2, 0.8, -0.5, 0.3])), start


def toy(width: int, tokens: int, samples: int) -> tuple[theory.Problem, tuple[Tensor, Tensor]]:
    """One diagonal head that learns from another."""
    draw = np.random.default_rng(0)
    inputs = torch.tensor(draw.normal(size=(samples, tokens, width)))
    query_key = torch.tensor(0.14 * draw.normal(size=width) * draw.normal(size=width))
    value_output = torch.tensor(draw.normal(size=width) * draw.normal(size=width))
    start = torch.tensor(draw.normal(size=2 * width)), torch.tensor(draw.normal(size=2 * width))
    return theory.attention_head(inputs, theory.attention_output(inputs, query_key, value_output)), start


@dataclass(frozen=True)
class Took:
    """How long something took, by the clock and in the processor; the two differ by waiting, and by threads."""

    wall: float
    processor: float

    def __add__(self, other: Took) -> Took:
        return Took(self.wall + other.wall, self.processor + other.processor)


NOTHING = Took(0.0, 0.0)


def timed(work: Callable[[], Answer]) -> tuple[Took, Answer]:
    wall, processor = time.perf_counter(), time.process_time()
    answer = work()
    return Took(time.perf_counter() - wall, time.process_time() - processor), answer


class Report:
    """Rows, shown as they come and once more as a table."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.table = Table("what", "seconds", "processor", "")
        for column in self.table.columns[1:3]:
            column.justify = "right"

    def row(self, what: str, took: Took, said: str = "") -> None:
        self.console.print(f"{what}: {took.wall:.2f} s")
        self.table.add_row(what, f"{took.wall:.2f}", f"{took.processor:.2f}", said)


def small(report: Report) -> None:
    """Five coefficients: their path, and the flow from an initialization near the end of float64."""
    problem, start = small_problem()
    theory.greedy(problem)  # scipy is imported at the first call.
    took, path = timed(lambda: theory.greedy(problem))
    report.row("five coefficients: greedy path, 5 stages", took)
    took, run = timed(lambda: theory.flow(problem, log_alpha=math.log(1e-300), start=start, until=6.5))
    worst = (run.stage_times(path) / path.times - 1).abs().max().item()
    report.row("  flow at alpha 1e-300", took, f"{run.trajectory.evaluations} gradients, times within {worst:.2%}")


def against_euler(report: Report, problem: theory.Problem, start: tuple[Tensor, Tensor], slower: float) -> None:
    """The flow at alpha = 1e-8 beside Euler's method, which is given `slower` times as long."""
    log_alpha = math.log(1e-8)
    took, run = timed(lambda: theory.flow(problem, log_alpha=log_alpha, start=start, until=UNTIL, tolerance=1e-6))
    truth = theory.flow(problem, log_alpha=log_alpha, start=start, until=UNTIL, tolerance=1e-10)
    gradient = min(timed(lambda: problem.force(run.products[-1]))[0].processor for _ in range(20))
    steps = int(slower * took.processor / gradient)
    rate = UNTIL * -log_alpha / steps
    euler_took, euler = timed(
        lambda: theory.descend(
            problem,
            optimizer=lambda weights: torch.optim.SGD(weights, lr=rate),
            log_alpha=log_alpha,
            start=start,
            steps=steps,
        )
    )
    grid = torch.linspace(0, UNTIL, 401, dtype=torch.float64)
    exact = truth.at(grid).products
    error = (run.at(grid).products - exact).abs().max().item()
    places = (grid / UNTIL * steps).round().long()
    exact_there = truth.at(euler.times[places].clamp(max=UNTIL)).products
    euler_error = (euler.products[places] - exact_there).abs().max().item()
    report.row(
        "toy, alpha 1e-8, rescaled time 0 to 4",
        took,
        f"error {error:.1e}, {run.trajectory.evaluations} gradients of {1e3 * gradient:.1f} ms",
    )
    ratio, worse = euler_took.processor / took.processor, euler_error / error
    report.row(
        f"  the same by Euler, {steps} steps",
        euler_took,
        f"{ratio:.1f} x the time, error {euler_error:.1e}: {worse:.0f} x as large",
    )


def toy_rows(report: Report, samples: int, stages: int, slower: float) -> None:
    """The paper's toy: against Euler, at its six scales, and its greedy path."""
    problem, start = toy(50, 10, samples)
    against_euler(report, problem, start, slower)
    total = NOTHING
    for alpha in ALPHAS:
        took, run = timed(
            lambda alpha=alpha: theory.flow(
                problem, log_alpha=math.log(alpha), start=start, until=UNTIL, tolerance=1e-6
            )
        )
        total += took
        losses = run.losses(torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64))
        report.row(
            f"  flow at alpha {alpha:g}", took, f"losses at 2, 3, 4: {', '.join(f'{one:.3f}' for one in losses)}"
        )
    report.row("  all six alphas", total)
    took, path = timed(lambda: theory.greedy(problem, stages=stages))
    report.row(f"  greedy path, {stages} stages", took, f"to time {path.times[-1]:.3f}, {path.reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1000, help="samples of the toy")
    parser.add_argument("--stages", type=int, default=26, help="stages of the greedy path of the toy")
    parser.add_argument("--slower", type=float, default=8.0, help="how many times as long Euler's method is given")
    parser.add_argument("--threads", type=int, help="of torch; all processors by default")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    console = Console(soft_wrap=True)
    report = Report(console)
    small(report)
    toy_rows(report, given.samples, given.stages, given.slower)
    console.print(report.table)
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    console.print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} processors, "
        f"{platform.processor() or platform.machine()}{load}"
    )


if __name__ == "__main__":
    main()
