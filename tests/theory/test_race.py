"""Stage A: arrival times in all their corner cases, winners, margins and ties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankwise.theory.race import arrivals, race


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def nobody(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.bool)


@given(st.floats(0.0, 2.0), st.floats(1e-6, 1e3), st.sampled_from([-1.0, 1.0]))
def test_drifting_for_the_arrival_time_leads_to_the_wall(log_scale: float, size: float, sign: float) -> None:
    wait = arrivals(vector(sign * size), vector(log_scale), nobody(1), floor=0.0)
    assert wait.item() >= 0
    wall = 0.0 if sign > 0 else 2.0
    assert log_scale - wait.item() * sign * size == pytest.approx(wall, abs=1e-12)


def test_who_just_left_has_the_whole_way_before_it() -> None:
    # It left at b = 0 with a force inwards, or at b = 2: it comes back with the other sign.
    found = arrivals(vector(-0.5, 0.25), vector(0.0, 2.0), nobody(2), floor=0.0)
    assert found.tolist() == [4.0, 8.0]
    ahead = race(vector(-0.5, 0.25), vector(0.0, 2.0), nobody(2), elapsed=3.0, floor=0.0)
    assert (ahead.winner, ahead.wait, ahead.sign) == (0, 4.0, -1)


def test_active_and_motionless_coordinates_never_arrive() -> None:
    active = torch.tensor([True, False, False, False])
    # An active one has b at its wall and a force of rounding: it would win at once.
    found = arrivals(vector(1e-13, 0.0, 1e-9, 1e-7), vector(0.0, 1.0, 1.0, 1.0), active, floor=1e-8)
    assert found[:3].isinf().all()
    assert found[3].item() == pytest.approx(1e7)
    assert race(vector(1e-13, 0.0), vector(0.0, 1.0), active[:2], elapsed=0.0, floor=0.0).winner is None


def test_the_margin_is_the_wait_for_the_runner_up() -> None:
    ahead = race(vector(1.0, -2.0, 0.4), vector(1.0, 1.0, 0.3), nobody(3), elapsed=5.0, floor=0.0)
    assert (ahead.winner, ahead.sign, ahead.runner_up) == (1, -1, 2)
    assert ahead.wait == 0.5
    assert ahead.margin == pytest.approx(0.25)
    assert ahead.tied == ()
    alone = race(vector(1.0), vector(1.0), nobody(1), elapsed=0.0, floor=0.0)
    assert alone.margin == math.inf
    assert alone.runner_up is None


def test_ties_are_judged_by_the_digits_that_are_left() -> None:
    forces, middle = vector(1.0, -1.0, 1.0 + 1e-12, 0.5), torch.ones(4, dtype=torch.float64)
    assert race(forces, middle, nobody(4), elapsed=0.0, floor=0.0).tied == (0, 1, 2)
    near = vector(1.0, 1.0 + 1e-6, 0.5)
    assert race(near, middle[:3], nobody(3), elapsed=0.0, floor=0.0).tied == ()
    # After a thousand units of time a difference of 1e-6 is nine digits down.
    assert race(near, middle[:3], nobody(3), elapsed=1e3, floor=0.0).tied == (0, 1)
