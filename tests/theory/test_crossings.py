"""When products crossed half their plateaus: signs, second activations, stages that never came."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from rankwise import theory
from rankwise.errors import UserError
from rankwise.theory.crossings import crossing_times
from tests.theory.worked import everyone_stays, one_leaves_and_returns

TIMES = torch.linspace(0, 10, 1001, dtype=torch.float64)


def straight(products: torch.Tensor):
    def refine(coordinate: int, level: float, before: int, after: int) -> float:
        low, high = products[[before, after], coordinate].tolist()
        return float(TIMES[before] + (level - low) / (high - low) * (TIMES[after] - TIMES[before]))

    return refine


def path_of(*activations: tuple[int, float], size: int = 2) -> theory.Path:
    """A path whose stages are activations of coordinates at values; all that crossings look at."""
    some, product = everyone_stays().path, torch.zeros(size, dtype=torch.float64)
    stages = []
    for coordinate, value in activations:
        product = product.clone()
        product[coordinate] = value
        stages.append(replace(some.stages[0], coordinate=coordinate, sign=1 if value > 0 else -1, product=product))
    return replace(some, stages=tuple(stages), start=replace(some.start, product=torch.zeros(size)))


def crossed(path: theory.Path, *columns: torch.Tensor) -> list[float]:
    products = torch.stack(columns, 1)
    return crossing_times(path, TIMES, products, refine=straight(products)).tolist()


def test_it_takes_the_predicted_sign() -> None:
    ramp = TIMES - 4.0
    assert crossed(path_of((0, 2.0), (1, -2.0)), ramp, -ramp) == pytest.approx([5.0, 5.0])
    # A product that goes the other way has not activated.
    assert math.isnan(crossed(path_of((0, 20.0)), -ramp, ramp)[0])


def test_a_second_activation_is_looked_for_after_the_first() -> None:
    there_and_back = torch.where(TIMES < 4, TIMES, 8 - TIMES)
    assert crossed(path_of((0, 4.0), (0, -1.0)), there_and_back, TIMES) == pytest.approx([2.0, 8.5])
    # With the same sign it has to have been away.
    twice = 2 * torch.sin(TIMES * math.pi / 4).square()
    assert crossed(path_of((0, 2.0), (0, 2.0)), twice, TIMES) == pytest.approx([1.0, 5.0], abs=1e-3)
    once = TIMES.clamp(max=3.0)
    assert math.isnan(crossed(path_of((0, 3.0), (0, 3.0)), once, TIMES)[1])


def test_what_was_there_from_the_start_and_what_has_no_plateau() -> None:
    assert crossed(path_of((0, 1.0)), TIMES + 5, TIMES) == [0.0]
    gone = path_of((0, 1.0), (1, 3.0))
    # A newcomer that left again within its own stage has no plateau to reach.
    stage = replace(gone.stages[0], product=torch.zeros(2).double())
    assert math.isnan(crossed(replace(gone, stages=(stage,)), TIMES, TIMES)[0])


def test_a_path_of_another_problem_is_refused() -> None:
    with pytest.raises(UserError, match="a path of 4 products was held against a run of 5"):
        everyone_stays().run(8).stage_times(one_leaves_and_returns().path)
