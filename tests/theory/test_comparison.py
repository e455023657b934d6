"""Predicted against measured: ratios, slopes, error bars, and stages that cannot be told apart."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import pytest
import torch
from rich.console import Console

from rankwise import theory
from rankwise.errors import UserError
from tests.theory.worked import LOG, everyone_stays, small_head


@dataclass
class Shifted:
    """A run whose times are the predicted ones and a constant: `t_k = T_k log(1/alpha) + C_k`."""

    log_alpha: float
    constants: torch.Tensor

    def stage_times(self, path: theory.Path) -> torch.Tensor:
        return path.times + self.constants / -self.log_alpha


def test_constants_and_slopes_are_read_off() -> None:
    path = everyone_stays().path
    constants = torch.tensor([0.5, -1.0, 2.0, math.nan, 0.0], dtype=torch.float64)
    late = torch.tensor([0.5, -1.0, 2.0, 3.0, 0.0], dtype=torch.float64)
    runs = [Shifted(-100.0, constants), Shifted(-5.0, constants), Shifted(-20.0, late)]
    compared = theory.compare(path, runs)
    assert compared.log_alphas.tolist() == [-5.0, -20.0, -100.0]
    # The smallest scale that reached the fourth stage is the middle one.
    torch.testing.assert_close(compared.offsets, late)
    reached = [0, 1, 2, 4]
    torch.testing.assert_close(compared.slopes[:, reached], path.times[reached].expand(2, -1))
    assert compared.slopes[:, 3].isnan().all()
    assert compared.slope_errors[:, reached].max() < 1e-12
    torch.testing.assert_close(
        (compared.measured - path.times).abs()[:, reached], compared.error_bars[:, reached], rtol=1e-9, atol=1e-12
    )
    torch.testing.assert_close(compared.ratios[0, 0], 1 + 0.5 / 5 / path.times[0])


def test_error_bars_from_one_scale_hold_at_another() -> None:
    """`C_k` of the smallest scale bounds the misses of the larger ones, to a fifth."""
    worked = everyone_stays()
    compared = theory.compare(worked.path, [worked.run(one, until=1.4) for one in (4, 8, 100)])
    misses = (compared.measured - compared.predicted).abs()
    assert bool((misses <= 1.2 * compared.error_bars).all())
    assert bool((misses >= 0.8 * compared.error_bars).all())


def test_stages_that_overlap_are_marked_and_are_those_that_swap() -> None:
    worked = small_head(0)
    compared = theory.compare(worked.path, [worked.run(one, until=1.3) for one in (2, 4, 100)])
    marked = compared.inseparable
    assert not marked[-1].any()
    assert marked[1].nonzero().flatten().tolist() == [1, 3, 4, 7]
    # With growing scale more of them overlap, and never fewer.
    assert bool((marked[0] | ~marked[1]).all())
    swapped = (compared.measured[0].diff() < 0).nonzero().flatten() + 1
    assert len(swapped)
    assert bool(marked[0, swapped].all())


def test_the_table_shows_them_all() -> None:
    worked = small_head(0)
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(theory.compare(worked.path, [worked.run(one, until=1.3) for one in (4, 100)]))
    lines = console.export_text().splitlines()
    assert "alpha 1e-4" in lines[1]
    assert "alpha 1e-100" in lines[1]
    second = next(line.split() for line in lines if line.split()[:1] == ["2"])
    assert second == ["2", "48.845", "~51.862", "48.965", "48.845", "27.8"]


def test_what_cannot_be_compared() -> None:
    worked = everyone_stays()
    with pytest.raises(UserError, match="no runs were given"):
        theory.compare(worked.path, [])
    with pytest.raises(UserError, match="the same alpha"):
        theory.compare(worked.path, [worked.run(8), worked.run(8)])


def test_gradient_descent_is_compared_like_a_flow() -> None:
    worked = everyone_stays()
    runs = [
        theory.descend(
            worked.problem,
            optimizer=lambda weights: torch.optim.SGD(weights, lr=0.02),
            log_alpha=LOG[exponent],
            start=worked.start,
            steps=int(7 * -LOG[exponent] / 0.02),
        )
        for exponent in (2, 4)
    ]
    compared = theory.compare(worked.path, runs)
    assert bool((compared.slope_errors < 0.03).all())
