"""Stage B: flows that settle, drop coordinates, run away, creep, or meet a NaN."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise import theory
from rankwise.theory.settle import Failure, settle, support_curvature


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def quadratic(curvature: torch.Tensor, target: torch.Tensor) -> theory.Problem:
    return theory.diagonal_linear(curvature, target)


@settings(max_examples=25)
@given(st.floats(0.01, 100.0), st.floats(-12.0, 3.0), st.sampled_from([-1.0, 1.0]))
def test_a_lone_product_settles_at_its_target_from_anywhere(target: float, exponent: float, sign: float) -> None:
    problem = quadratic(torch.eye(1), vector(sign * target))
    settled = settle(problem, vector(sign * 10**exponent), largest_force=target)
    assert settled.failure is None
    assert settled.products.item() == pytest.approx(sign * target, rel=1e-12)


def test_zeros_stay_zero_and_signs_stay() -> None:
    problem = quadratic(torch.eye(3), vector(1.0, 2.0, -3.0))
    # The first would like to be positive: it shrinks away instead, since its sign cannot turn.
    settled = settle(problem, vector(-1.0, 1e-8, 0.0), largest_force=3.0)
    assert settled.products.tolist() == pytest.approx([0.0, 2.0, 0.0], abs=1e-13)
    assert settled.support.tolist() == [False, True, False]
    # What left is pushed outwards no more: the force on it has the other sign.
    assert problem.force(settled.products)[0] > 0


def test_a_newcomer_that_starts_below_what_counts_as_dead_still_grows() -> None:
    problem = quadratic(torch.eye(2), vector(5.0, 1e-3))
    settled = settle(problem, vector(5.0, 1e-30), largest_force=5.0)
    torch.testing.assert_close(settled.products, vector(5.0, 1e-3), rtol=1e-10, atol=0)


def test_a_slow_decay_is_followed_to_its_end() -> None:
    # The second coordinate decays at 1e-4 of the first one's pace: at rest it is gone, and not before.
    curvature = torch.stack([vector(1.0, 0.5001), vector(0.5001, 1.0)])
    problem = theory.Problem(
        size=2, gradient=lambda q: curvature @ q - vector(2.0, 1.0), hessian=lambda q, i, j: curvature[i][:, j]
    )
    assert problem.force(vector(2.0, 0.0))[1].item() == pytest.approx(-2e-4, rel=1e-6)
    settled = settle(problem, vector(0.1, 1.0), largest_force=2.0)
    assert settled.failure is None
    assert settled.products.tolist() == pytest.approx([2.0, 0.0], abs=1e-12)


def test_the_end_is_the_minimum_the_flow_goes_to_and_not_the_nearest_root() -> None:
    # (q - 1)^2 (q - 3)^2 / 4: rest at 1 and 3, a maximum at 2.
    problem = theory.Problem.from_loss(lambda q: ((q - 1).square() * (q - 3).square()).sum() / 4, size=1)
    for start, end in ((0.01, 1.0), (1.999, 1.0), (2.001, 3.0), (40.0, 3.0)):
        assert settle(problem, vector(start), largest_force=6.0).products.item() == pytest.approx(end, rel=1e-9)


def test_growth_without_end_is_said() -> None:
    linear = settle(theory.Problem(size=1, gradient=lambda q: -torch.ones_like(q)), vector(1e-4), largest_force=1.0)
    assert linear.failure is Failure.UNBOUNDED
    # Like a separable cross-entropy: growth only with the logarithm of time, ever slower.
    tail = settle(theory.Problem.from_loss(lambda q: (-q).exp().sum(), size=1), vector(1e-4), largest_force=1.0)
    assert tail.failure is Failure.UNBOUNDED
    assert "grow without end" in tail.reason


def test_a_degenerate_minimum_is_found_and_shows_no_curvature() -> None:
    flat = theory.Problem.from_loss(lambda q: (q - 1).pow(4).sum(), size=1)
    settled = settle(flat, vector(1e-4), largest_force=4.0)
    assert settled.failure is None
    # Within the fourth root of rounding, the flow's pace, and what is left of the force.
    assert settled.products.item() == pytest.approx(1.0, abs=1e-2)
    assert support_curvature(flat, settled.products) < 1e-3


def test_a_flow_that_circles_is_given_up() -> None:
    """Predator and prey: no loss has such a gradient, and no such flow an end."""

    def gradient(q: torch.Tensor) -> torch.Tensor:
        return torch.stack([q[1] - 1, 1 - q[0]])

    settled = settle(theory.Problem(size=2, gradient=gradient), vector(0.3, 0.3), largest_force=1.0, most_steps=600)
    assert settled.failure is Failure.UNSETTLED
    assert settled.reason == "600 steps did not suffice"


def test_a_nan_ends_the_stage_with_its_reason() -> None:
    def gradient(q: torch.Tensor) -> torch.Tensor:
        return torch.where(q > 0.5, torch.nan, q - 1)

    settled = settle(theory.Problem(size=1, gradient=gradient), vector(1e-4), largest_force=1.0)
    assert settled.failure is Failure.NOT_FINITE
    assert "nan" in settled.reason
    at_once = settle(theory.Problem(size=1, gradient=lambda q: q * math.nan), vector(1e-4), largest_force=1.0)
    assert at_once.failure is Failure.NOT_FINITE


def test_the_curvature_is_that_of_the_support_alone() -> None:
    curvature = torch.tensor([[2.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1e-3]]).double()
    problem = quadratic(curvature, vector(1.0, 1.0, 1.0))
    assert support_curvature(problem, vector(0.3, 0.0, 0.0)) == pytest.approx(2.0)
    expected = torch.linalg.eigvalsh(curvature[:2, :2])[0].item()
    assert support_curvature(problem, vector(0.3, -2.0, 0.0)) == pytest.approx(expected)
    assert math.isnan(support_curvature(problem, vector(0.0, 0.0, 0.0)))
