"""Greedy low-rank learning: eigenvectors one at a time, against gradient flow from a small start."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate

from rankwise import theory
from rankwise.errors import UserError


def symmetric(size: int, seed: int) -> torch.Tensor:
    draw = torch.tensor(np.random.default_rng(seed).normal(size=(size, size)))
    return (draw + draw.mT) / 2


@pytest.mark.parametrize("seed", range(2))
def test_the_square_loss_adds_the_eigenvectors_of_its_target(seed: int) -> None:
    target = symmetric(5, seed)
    path = theory.greedy_low_rank(lambda w: (w - target).square().sum() / 2, size=5)
    values, vectors = torch.linalg.eigh(target)
    positive = [float(one) for one in values.flip(0) if one > 0]
    assert path.complete
    assert [stage.eigenvalue for stage in path.stages] == pytest.approx(positive, rel=1e-6)
    for count, stage in enumerate(path.stages, 1):
        best = vectors[:, -count:] * values[-count:] @ vectors[:, -count:].mT
        torch.testing.assert_close(stage.matrix, best, rtol=0, atol=1e-8)
        assert stage.rank == count == torch.linalg.matrix_rank(stage.matrix, atol=1e-6)
        assert abs(float(stage.direction @ vectors[:, -count])) == pytest.approx(1, rel=1e-6)
        assert stage.residual < 1e-9


def sensing(size: int = 5, count: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    draw = np.random.default_rng(0)
    measured = torch.tensor(draw.normal(size=(count, size, size)))
    measured = (measured + measured.mT) / 2
    factor = torch.tensor(draw.normal(size=(size, 2)))
    return measured, (measured * (factor @ factor.mT)).sum((1, 2))


@pytest.mark.slow
def test_gradient_flow_from_a_small_start_passes_its_plateaus() -> None:
    measured, targets = sensing()

    def loss(w: torch.Tensor) -> torch.Tensor:
        return ((measured * w).sum((1, 2)) - targets).square().mean() / 2

    path = theory.greedy_low_rank(loss, size=5)
    assert path.complete
    assert all(one.residual < 1e-8 for one in path.stages)
    losses = [one.loss for one in path.stages]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 1e-12

    def nearest(alpha: float) -> list[float]:
        """How near a flow from `alpha I` passes each of the plateaus."""

        def slope(_: float, state: np.ndarray) -> np.ndarray:
            u = torch.tensor(state).view(5, 5)
            residuals = (measured * (u @ u.mT)).sum((1, 2)) - targets
            return -2 * ((residuals.view(-1, 1, 1) * measured).mean(0) @ u).flatten().numpy()

        start, until = alpha * np.eye(5).flatten(), 20 * math.log(1 / alpha) / path.stages[0].eigenvalue
        answer = integrate.solve_ivp(slope, (0, until), start, method="LSODA", rtol=1e-8, atol=1e-9 * alpha)
        u = torch.tensor(answer.y.T).view(-1, 5, 5)
        ways = ((u @ u.mT - stage.matrix).norm(dim=(1, 2)).min().item() for stage in path.stages)
        return [way / path.stages[0].matrix.norm().item() for way in ways]

    near, nearer = nearest(1e-20), nearest(1e-60)
    assert near[0] < 4e-3
    assert nearer[0] < 1e-6
    # The third eigenvalue of the last plateau is zero: it is approached only like 1 / time.
    assert max(nearer) < 0.01
    assert sum(nearer) < sum(near) / 4


def test_it_stops_where_told_and_where_nothing_escapes() -> None:
    target = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))

    def loss(w: torch.Tensor) -> torch.Tensor:
        return (w - target).square().sum() / 2

    two = theory.greedy_low_rank(loss, size=3, stages=2)
    assert not two.complete
    assert "as many as were asked for" in two.reason
    assert len(two.stages) == 2
    whole = theory.greedy_low_rank(loss, size=3)
    assert whole.complete
    assert len(whole.stages) == 3
    nothing = theory.greedy_low_rank(lambda w: (w + target).square().sum(), size=3)
    assert nothing.stages == ()
    assert nothing.complete
    with pytest.raises(UserError, match="positive numbers"):
        theory.greedy_low_rank(loss, size=0)


@pytest.mark.slow
def test_what_does_not_come_to_rest_is_marked() -> None:
    def unbounded(w: torch.Tensor) -> torch.Tensor:
        return (w[0, 0] - 2).square() / 2 - w[1, 1]

    path = theory.greedy_low_rank(unbounded, size=2)
    assert not path.complete
    assert [stage.rank for stage in path.stages] == [1]
    assert "stage 2" in path.reason

    def broken(w: torch.Tensor) -> torch.Tensor:
        return (1 - w[0, 0]).sqrt() + w[1, 1]

    path = theory.greedy_low_rank(broken, size=2)
    assert not path.complete
    assert path.stages == ()


def test_a_diagonal_matrix_is_the_algorithm_for_vectors_without_its_memory() -> None:
    """With a diagonal target both add the same coordinates in the same order."""
    target = torch.tensor([1.0, 4.0, 2.5], dtype=torch.float64)
    path = theory.greedy(theory.diagonal_linear(torch.eye(3), target))
    ranks = theory.greedy_low_rank(lambda w: (w - torch.diag(target)).square().sum() / 2, size=3)
    assert [int(stage.direction.abs().argmax()) for stage in ranks.stages] == list(path.coordinates)
    for one, other in zip(ranks.stages, path.stages, strict=True):
        torch.testing.assert_close(one.matrix, torch.diag(other.product), rtol=0, atol=1e-8)
