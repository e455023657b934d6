"""Three worked problems whose stages are known to four digits and more, for the tests beside this file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor

from rankwise import theory

LOG = [-exponent * math.log(10) for exponent in range(1001)]
"""The logarithm of alpha = 1e-exponent, by the exponent."""


@dataclass(frozen=True, eq=False)
class Worked:
    """A problem, a start, and its stages: coordinates, signs, times in the limit."""

    problem: theory.Problem
    start: tuple[Tensor, Tensor]
    coordinates: tuple[int, ...]
    signs: tuple[int, ...]
    times: tuple[float, ...]

    @cached_property
    def path(self) -> theory.Path:
        return theory.greedy(self.problem)

    def run(self, exponent: int, *, until: float = 1.1, tolerance: float = 1e-8) -> theory.Flow:
        """The flow from alpha = 1e-exponent, to `until` times the last stage; computed once."""
        return _run(self, exponent, until, tolerance)


@cache
def _run(worked: Worked, exponent: int, until: float, tolerance: float) -> theory.Flow:
    return theory.flow(
        worked.problem,
        log_alpha=LOG[exponent],
        start=worked.start,
        until=until * worked.times[-1],
        tolerance=tolerance,
    )


@cache
def everyone_stays() -> Worked:
    """Five correlated coefficients that activate one by one."""
    draw = np.random.default_rng(0)
    mixing = 0.25 * draw.normal(size=(5, 5))
    problem = theory.diagonal_linear(
        torch.tensor(np.eye(5) + (mixing + mixing.T) / 2), torch.tensor([2.0, -1.2, 0.8, -0.5, 0.3])
    )
    start = torch.tensor(draw.normal(size=5)), torch.tensor(draw.normal(size=5))
    return Worked(problem, start, (0, 1, 3, 2, 4), (1, -1, -1, 1, 1), (0.48913, 0.72891, 1.96637, 4.10345, 5.83225))


@cache
def one_leaves_and_returns() -> Worked:
    """Four coefficients; the second to activate leaves at the fourth stage and returns with the other sign."""
    draw = np.random.default_rng(1238)
    mixing = draw.normal(size=(4, 8))
    target = torch.tensor(draw.normal(size=4) * np.array([2, 1.5, 1, 0.7]))
    start = torch.tensor(draw.normal(size=4)), torch.tensor(draw.normal(size=4))
    problem = theory.diagonal_linear(torch.tensor(mixing @ mixing.T / 8), target)
    return Worked(problem, start, (0, 3, 1, 2, 3), (1, -1, -1, 1, 1), (1.0394, 1.7104, 3.1619, 3.6551, 22.8627))


@cache
def small_head(seed: int = 7) -> Worked:
    """A diagonal attention head of width 4, whose loss is a mean over all entries."""
    draw = np.random.default_rng(seed)
    inputs = torch.tensor(draw.normal(size=(64, 6, 4)))
    query_key, value_output = (torch.tensor(draw.normal(size=4) * draw.normal(size=4)) for _ in range(2))
    targets = theory.attention_output(inputs, query_key, value_output)
    problem = theory.attention_head(inputs, targets).scaled(1 / 4)
    draw = np.random.default_rng(100 + seed)
    start = torch.tensor(draw.normal(size=8)), torch.tensor(draw.normal(size=8))
    coordinates, signs, times = {
        7: (
            (6, 5, 2, 1, 3, 7, 4, 0),
            (1, 1, -1, -1, 1, 1, 1, 1),
            (33.980, 40.123, 50.970, 83.704, 94.114, 125.439, 233.837, 338.726),
        ),
        0: (
            (5, 4, 1, 6, 7, 3, 0, 2),
            (1, 1, 1, -1, -1, -1, -1, -1),
            (42.786, 48.845, 63.985, 73.940, 80.696, 210.414, 364.027, 402.535),
        ),
    }[seed]
    return Worked(problem, start, coordinates, signs, times)
