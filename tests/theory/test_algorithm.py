"""The greedy algorithm: worked problems to the last known digit, invariances, l1 minima, and every way to end."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise import theory
from rankwise.errors import UserError
from rankwise.theory.path import Ending
from tests.theory.worked import Worked, everyone_stays, one_leaves_and_returns, small_head

WORKED: dict[str, Callable[[], Worked]] = {
    "everyone stays": everyone_stays,
    "one leaves and returns": one_leaves_and_returns,
    "a small head": small_head,
    "another small head": lambda: small_head(0),
}


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("name", WORKED)
def test_worked_problems_to_four_digits(name: str) -> None:
    worked = WORKED[name]()
    path = worked.path
    assert path.complete
    assert path.ending is Ending.STATIONARY
    assert path.coordinates == worked.coordinates
    assert tuple(stage.sign for stage in path.stages) == worked.signs
    # What is known of the times are five or six digits.
    torch.testing.assert_close(path.times, vector(*worked.times), rtol=2e-5, atol=0)
    assert path.losses[-1].item() < 1e-20
    assert bool((path.losses.diff() < 0).all())


@pytest.mark.parametrize("name", WORKED)
def test_every_stage_is_what_its_definition_says(name: str) -> None:
    """Stationary on its support, at a strict minimum, `b` drifting along the force, one newcomer at most."""
    worked = WORKED[name]()
    for before, stage in zip(worked.path.plateaus, worked.path.stages, strict=False):
        support = list(stage.support)
        assert support == stage.product.nonzero().flatten().tolist()
        assert stage.force[support].abs().max().item() < 1e-9 * before.force.abs().max().item() + 1e-12
        torch.testing.assert_close(stage.force, worked.problem.force(stage.product), rtol=0, atol=0)
        assert stage.curvature > 0
        assert stage.loss == worked.problem.value(stage.product)
        idle = (before.product == 0).nonzero().flatten()
        drifted = before.log_scale - (stage.time - before.time) * before.force
        torch.testing.assert_close(stage.log_scale[idle], drifted[idle], rtol=0, atol=1e-9)
        assert bool(((stage.log_scale >= 0) & (stage.log_scale <= 2)).all())
        assert stage.log_scale[stage.coordinate] == (0 if stage.sign > 0 else 2)
        assert math.copysign(1, stage.product[stage.coordinate]) == stage.sign
        entered = set(support) - set(before.product.nonzero().flatten().tolist())
        assert entered == {stage.coordinate}
        for left in stage.dropped:
            # It stays at its wall and is pushed away from it.
            assert stage.log_scale[left] in (0, 2)
            assert stage.force[left] * (1 - stage.log_scale[left]) < 0


def test_the_plateaus_of_the_first_problem() -> None:
    path = everyone_stays().path
    expected = torch.stack(
        [
            vector(0, 0, 0, 0, 0),
            vector(1.9822, 0, 0, 0, 0),
            vector(2.0117, -1.0640, 0, 0, 0),
            vector(1.9760, -1.1211, 0, -0.4917, 0),
            vector(1.9785, -1.1761, 0.6281, -0.4612, 0),
            vector(2.0, -1.2, 0.8, -0.5, 0.3),
        ]
    )
    torch.testing.assert_close(path.products, expected, rtol=0, atol=5e-5)
    torch.testing.assert_close(
        path.losses[1:], vector(1.00811, 0.257935, 0.127506, 0.0476768, 0), rtol=1e-5, atol=1e-12
    )
    torch.testing.assert_close(path.stages[0].log_scale, vector(0, 1.6619, 0.9253, 1.2555, 1.0448), rtol=0, atol=5e-5)


def test_a_coordinate_leaves_and_returns_with_the_other_sign() -> None:
    path = one_leaves_and_returns().path
    fourth, fifth = path.stages[3:]
    assert [stage.dropped for stage in path.stages] == [(), (), (), (3,), ()]
    assert fourth.support == (0, 1, 2)
    assert fourth.log_scale[3] == 2
    assert fourth.force[3] > 0
    # It has the whole way from one wall to the other before it.
    assert fifth.distance == pytest.approx(2.0)
    assert fifth.time - fourth.time == pytest.approx(2 / fourth.force[3].item())
    assert fifth.time - fourth.time == pytest.approx(19.2076, abs=5e-5)
    assert fifth.time == pytest.approx(22.8627, abs=5e-5)
    assert (path.stages[1].sign, fifth.sign) == (-1, 1)


def test_the_losses_of_the_head_and_the_names_of_its_stages() -> None:
    path = small_head().path
    expected = vector(0.03684, 0.02396, 0.01775, 0.008865, 0.00739, 0.001133, 4.03e-4, 1.42e-4)
    torch.testing.assert_close(path.losses[:-1], expected, rtol=2e-3, atol=0)
    assert str(path.stages[0].place) == "layer 0 head 0 VO 2"
    assert [stage.place.pairing.value for stage in path.stages if stage.place] == [
        "VO",
        "VO",
        "QK",
        "QK",
        "QK",
        "VO",
        "VO",
        "QK",
    ]
    # Keys and queries feel nothing before something is written.
    assert path.start.force[:4].tolist() == [0.0] * 4
    assert path.stages[0].force[:4].abs().min() > 0


@settings(max_examples=3)
@given(st.floats(-6.0, -0.5), st.floats(-3.0, 3.0))
def test_neither_the_perturbation_nor_the_size_of_the_loss_matters(perturbation: float, scale: float) -> None:
    for worked in (everyone_stays(), one_leaves_and_returns()):
        factor = 10**scale
        path = theory.greedy(worked.problem.scaled(factor), perturbation=10**perturbation)
        assert path.coordinates == worked.path.coordinates
        torch.testing.assert_close(path.times * factor, worked.path.times, rtol=1e-9, atol=0)
        torch.testing.assert_close(path.products, worked.path.products, rtol=1e-9, atol=1e-11)


@settings(max_examples=4)
@given(st.permutations(range(5)), st.lists(st.sampled_from([-1.0, 1.0]), min_size=5, max_size=5))
def test_coordinates_have_no_order_and_no_preferred_sign(order: list[int], signs: list[float]) -> None:
    worked, turn = everyone_stays(), torch.tensor(signs, dtype=torch.float64)
    chosen = torch.tensor(order)

    def gradient(q: torch.Tensor) -> torch.Tensor:
        whole = torch.zeros(5, dtype=torch.float64).index_put((chosen,), q * turn)
        return -worked.problem.force(whole)[chosen] * turn

    path = theory.greedy(theory.Problem(size=5, gradient=gradient))
    assert [order[one] for one in path.coordinates] == list(worked.coordinates)
    torch.testing.assert_close(path.times, worked.path.times, rtol=1e-7, atol=0)


@pytest.mark.slow
def test_regression_with_too_few_samples_ends_at_the_least_l1_norm() -> None:
    """Against a linear program, a hundred times; a good part of the paths drops coordinates on its way."""
    dropped = 0
    for seed in range(100):
        draw = np.random.default_rng(seed)
        samples, size = int(draw.integers(2, 6)), int(draw.integers(7, 12))
        inputs, targets = torch.tensor(draw.normal(size=(samples, size))), torch.tensor(draw.normal(size=samples))
        path = theory.greedy(theory.regression(inputs, targets))
        assert path.complete, path.reason
        torch.testing.assert_close(path.products[-1], theory.basis_pursuit(inputs, targets), rtol=0, atol=1e-7)
        dropped += any(stage.dropped for stage in path.stages)
    assert dropped >= 20


def test_it_stops_where_it_is_told_to() -> None:
    problem, whole = everyone_stays().problem, everyone_stays().path
    two = theory.greedy(problem, stages=2)
    assert two.ending is Ending.STAGES
    assert two.complete
    assert two.coordinates == whole.coordinates[:2]
    assert theory.greedy(problem, stages=0).stages == ()
    # The plateaus' losses are 2.9, 1.008, 0.258, ...
    below = theory.greedy(problem, loss_below=0.5)
    assert below.ending is Ending.LOSS
    assert len(below.stages) == 2
    assert len(theory.greedy(problem, stages=99).stages) == 5


def test_at_a_stationary_zero_nothing_happens() -> None:
    path = theory.greedy(theory.Problem(gradient=lambda q: q, size=3))
    assert path.stages == ()
    assert path.ending is Ending.STATIONARY
    assert path.times.shape == (0,)
    assert path.products.tolist() == [[0.0] * 3]


def test_a_tie_is_said_with_everyone_in_it() -> None:
    path = theory.greedy(theory.diagonal_linear(torch.eye(4), vector(3.0, 1.0, -1.0, 0.5)))
    assert path.ending is Ending.TIED
    assert not path.complete
    assert path.tied == (1, 2)
    assert len(path.stages) == 1
    assert "coordinates 1, 2 tie at time 1" in path.reason
    assert "Assumption 4.2" in path.reason


def separable(smoothing: float) -> theory.Problem:
    """Two classes that a sign tells apart, with cross-entropy."""
    inputs = torch.tensor([[1.0, 0.3], [2.0, -0.5], [-1.5, 0.2], [-0.7, -0.1]]).double()
    labels = torch.tensor([1, 1, 0, 0])

    def loss(q: torch.Tensor) -> torch.Tensor:
        logits = torch.stack([torch.zeros(4, dtype=torch.float64), inputs @ q], 1)
        return torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)

    return theory.Problem.from_loss(loss, size=2)


def test_separable_cross_entropy_has_no_end_and_the_advice_given_helps() -> None:
    path = theory.greedy(separable(0.0))
    assert path.ending is Ending.UNBOUNDED
    assert not path.complete
    assert "stage 1 (coordinate 0 at time" in path.reason
    assert "with_decay" in path.reason
    assert "label smoothing" in path.reason
    for mended in (separable(0.05), separable(0.0).with_decay(1e-3)):
        settled = theory.greedy(mended)
        assert settled.complete
        assert settled.coordinates[0] == 0


@pytest.mark.slow
def test_a_stage_that_does_not_come_to_rest_keeps_those_before() -> None:
    """Prey grows to its limit; then a predator enters, and they go round and round: no loss has such a gradient."""
    turns = torch.stack([vector(1e-2, 1.0), vector(-1.0, 0.0)])
    problem = theory.Problem(
        size=2,
        gradient=lambda q: turns @ q - vector(1.0, -0.3),
        hessian=lambda _, rows, columns: turns[rows][:, columns],
    )
    path = theory.greedy(problem)
    assert path.ending is Ending.UNSETTLED
    assert not path.complete
    torch.testing.assert_close(path.products, torch.tensor([[0.0, 0.0], [100.0, 0.0]]).double())
    assert "stage 2 (coordinate 1 at time 1.01304): 20000 steps did not suffice" in path.reason


def test_a_gradient_that_breaks_later_keeps_the_stages_before() -> None:
    problem = everyone_stays().problem

    def gradient(q: torch.Tensor) -> torch.Tensor:
        return torch.where(q[3] < 0, torch.nan, -problem.force(q))

    path = theory.greedy(theory.Problem(size=5, gradient=gradient))
    assert path.ending is Ending.NOT_FINITE
    assert path.coordinates == (0, 1)
    assert "stage 3 (coordinate 3" in path.reason
    assert "the path up to here stands" in path.reason
    with pytest.raises(theory.NotFinite):
        theory.greedy(theory.Problem(size=1, gradient=lambda q: q * math.nan))


def test_a_force_given_as_a_gradient_is_noticed() -> None:
    problem = everyone_stays().problem
    with pytest.raises(UserError, match="give gradient = dL/dq, not the force"):
        theory.greedy(theory.Problem(size=5, gradient=problem.force, loss=problem.loss))


@pytest.mark.parametrize(("stages", "perturbation"), [(-1, 1e-4), (None, 0.0), (None, 1.0), (None, math.nan)])
def test_what_cannot_be_asked_for(stages: int | None, perturbation: float) -> None:
    with pytest.raises(UserError):
        theory.greedy(everyone_stays().problem, stages=stages, perturbation=perturbation)
