"""Assumptions: they hold where they are known to, and each one that is broken is the one that is reported."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from rankwise import theory
from rankwise.errors import UserError
from tests.theory.worked import Worked, everyone_stays, one_leaves_and_returns, small_head


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("worked", [everyone_stays, one_leaves_and_returns])
def test_they_hold_for_the_worked_problems(worked) -> None:
    one: Worked = worked()
    found = theory.check(one.problem, one.path, start=one.start, trials=3)
    assert found.holds
    assert found.gradient_error < 1e-8
    assert found.jump == 0.0
    assert found.imbalance > 0
    assert len(found.stages) == len(one.path.stages)
    for check, stage in zip(found.stages, one.path.stages, strict=True):
        assert check.margin == stage.margin / stage.time
        assert check.curvature == stage.curvature
        assert check.returned < 1e-10
        assert check.repeated < 1e-10
        assert math.isinf(check.leaving) == (not stage.dropped)


@pytest.mark.slow
def test_they_hold_for_the_head() -> None:
    one = small_head()
    found = theory.check(one.problem, one.path, start=one.start, trials=20)
    assert found.holds
    assert max(check.returned for check in found.stages) < 1e-10
    assert max(check.repeated for check in found.stages) < 1e-10
    assert min(check.curvature for check in found.stages) == pytest.approx(0.026, abs=5e-4)
    # Smooth, and not quadratic: the jumps of its second derivative shrink with the grid.
    assert 0.1 < found.jump < 0.5


def test_a_flat_valley_is_no_strict_minimum() -> None:
    """4.3: with two equal features the loss is flat along their difference once both are active."""
    inputs = torch.tensor([[1.0, 1.0, 0.5], [2.0, 2.0, 1.0]]).double()
    problem = theory.diagonal_linear(inputs.mT @ inputs, vector(1.0, 0.0, 0.2))
    path = everyone_stays().path
    plateau = vector(0.5, 0.5, 0.2)
    stage = replace(path.stages[0], coordinate=2, sign=1, product=plateau, support=(0, 1, 2), curvature=0.0)
    start = replace(path.start, product=vector(0.5, 0.5, 0.0), force=problem.force(vector(0.5, 0.5, 0.0)))
    found = theory.check(problem, replace(path, stages=(stage,), start=start))
    assert not found.stages[0].holds
    assert found.stages[0].returned > 1e-3
    assert not found.holds


@pytest.mark.slow
def test_a_second_basin_nearby_is_found_by_the_perturbations() -> None:
    """4.4: from a newcomer of some size the flow ends in another minimum."""
    problem = theory.Problem.from_loss(lambda q: ((q - 1e-3).square() * (q - 1).square()).sum(), size=1)
    path = theory.greedy(problem)
    assert path.products[-1].item() == pytest.approx(1e-3)
    gentle = theory.check(problem, path, noise=1e-3, trials=10)
    assert gentle.stages[0].repeated < 1e-6
    assert math.isfinite(gentle.stages[0].curvature)
    harsh = theory.check(problem, path, noise=0.9, trials=30)
    assert harsh.stages[0].returned > 0.5


@pytest.mark.parametrize("function", [torch.relu, torch.abs, lambda q: q * q.abs(), lambda q: (q - 0.3).relu()])
def test_a_kink_in_a_gradient_that_was_given_is_found(function) -> None:
    """2.1: `Problem.from_loss` refuses kinks by name; where only a gradient was given, its own jumps tell."""

    def loss(q: torch.Tensor) -> torch.Tensor:
        return (function(q) - vector(1.0, 0.7)).square().sum() / 2

    problem = theory.Problem(size=2, gradient=torch.func.grad(loss), loss=loss)
    found = theory.check(problem, everyone_path(2))
    assert found.jump > 0.6
    assert not found.holds
    smooth = theory.Problem.from_loss(lambda q: (torch.tanh(2 * q) - vector(1.0, 0.7)).square().sum() / 2, size=2)
    assert theory.check(smooth, everyone_path(2)).jump < 0.5


def everyone_path(size: int) -> theory.Path:
    """A path without stages, of plateau size 1."""
    path = everyone_stays().path
    return replace(path, stages=(), start=replace(path.start, product=torch.zeros(size, dtype=torch.float64)))


def test_a_gradient_of_another_loss_and_an_equal_start_are_found() -> None:
    one = everyone_stays()
    other = replace(one.problem, loss=lambda q: 1.01 * one.problem.value(q) * torch.ones(()).double())
    found = theory.check(other, one.path, trials=1)
    assert found.gradient_error == pytest.approx(0.01, rel=0.6)
    assert not found.holds
    equal = theory.check(one.problem, one.path, start=(torch.ones(5), -torch.ones(5)), trials=1)
    assert equal.imbalance == 0
    assert not equal.holds
    without = theory.check(replace(one.problem, loss=None), one.path, trials=1)
    assert math.isnan(without.gradient_error)
    assert without.holds


def test_the_table_and_bad_requests() -> None:
    one = everyone_stays()
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(theory.check(one.problem, one.path, trials=2))
    text = console.export_text()
    assert text.count(" yes") == 5
    assert "2 perturbations of 0.05 each" in text
    for given in ({"trials": 0}, {"noise": 0.0}, {"noise": math.nan}):
        with pytest.raises(UserError, match="give positive numbers"):
            theory.check(one.problem, one.path, **given)
