"""The integrator keeps what it reached, stops when asked, and says why it ended."""

from __future__ import annotations

import math

import pytest
import torch

from rankwise.theory.integration import integrate
from rankwise.theory.problem import NotFinite

ONE = torch.ones(1, dtype=torch.float64)


def decay(state: torch.Tensor) -> torch.Tensor:
    return -state


def jacobian(state: torch.Tensor) -> torch.Tensor:
    return -torch.eye(len(state), dtype=torch.float64)


def test_dense_output_is_as_good_as_the_steps() -> None:
    way = integrate(decay, ONE, until=3.0, jacobian=jacobian, tolerance=1e-10)
    assert way.failure is None
    assert way.times[-1] == 3.0
    times = torch.linspace(0, 3, 57, dtype=torch.float64)
    torch.testing.assert_close(way.at(times)[:, 0], torch.exp(-times), rtol=1e-7, atol=0)
    torch.testing.assert_close(way.states[:, 0], torch.exp(-way.times), rtol=1e-8, atol=0)
    assert way.evaluations >= len(way.times)


def test_it_stops_when_asked_and_needs_no_end() -> None:
    way = integrate(
        decay, ONE, until=math.inf, jacobian=jacobian, tolerance=1e-8, stop=lambda time, state: state.item() < 1e-3
    )
    assert way.failure is None
    assert way.states[-1].item() < 1e-3 <= way.states[-2].item()


def test_a_stiff_flow_takes_few_steps() -> None:
    rates = torch.tensor([1.0, 1e6], dtype=torch.float64)
    way = integrate(
        lambda x: -rates * x, torch.ones(2).double(), until=10.0, jacobian=lambda _: -torch.diag(rates), tolerance=1e-6
    )
    assert way.failure is None
    assert len(way.times) < 500  # An explicit method needs millions.
    assert way.states[-1, 0].item() == pytest.approx(math.exp(-10), rel=1e-2)


def test_a_blow_up_a_nan_and_too_many_steps_keep_what_was_reached() -> None:
    squared = integrate(
        torch.square, ONE, until=2.0, jacobian=lambda x: torch.diag(2 * x), tolerance=1e-8, most_steps=400
    )
    assert squared.failure is not None
    assert 0.9 < squared.times[-1] < 1.01

    def broken(state: torch.Tensor) -> torch.Tensor:
        if state.item() < 0.5:
            raise NotFinite("the gradient is broken")
        return -state

    stopped = integrate(broken, ONE, until=3.0, jacobian=jacobian, tolerance=1e-8)
    assert stopped.failure == "the gradient is broken"
    assert 0.0 < stopped.times[-1] < math.log(2) + 1e-6
    assert stopped.at(stopped.times[-1:]).shape == (1, 1)

    few = integrate(decay, ONE, until=3.0, jacobian=jacobian, tolerance=1e-12, most_steps=5)
    assert few.failure == "5 steps did not suffice"
    assert len(few.times) == 6
    never = integrate(broken, ONE / 4, until=3.0, jacobian=jacobian, tolerance=1e-8)
    assert never.failure == "the gradient is broken"
    assert never.at(torch.zeros(2).double()).tolist() == [[0.25], [0.25]]
