"""Local minima of the factors' loss and of the nuclear norm's are the same, seen from both sides."""

from __future__ import annotations

import pytest
import torch

from rankwise.errors import UserError
from rankwise.theory import MatrixLoss, factor_minimum, lifted, nuclear_minimum

SHAPE = (4, 5)


def rugged(seed: int) -> MatrixLoss:
    """A loss with a minimum of its own for almost every start."""
    return MatrixLoss.rugged(SHAPE, seed=seed, waves=12, height=1.5)


def with_parameters(seed: int):
    """A rugged loss whose waves are shifted by further parameters that it also bounds."""
    rough = rugged(seed)
    mixing = torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / 4

    def loss(w: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        moved = w + torch.einsum("p,pij->ij", theta.tanh(), mixing)
        return rough.value(moved) + theta.square().sum() / 4 + (theta.sum() + w[0, 0]).cos()

    return loss


@pytest.mark.parametrize("rank", [2, 4])
@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_end_points_of_factors_are_stationary_for_the_nuclear_norm(seed, rank) -> None:
    found = factor_minimum(rugged(seed).value, shape=SHAPE, rank=rank, decay=0.6, seed=seed)
    assert found.residual < 1e-9
    assert found.corresponds
    assert found.value.relative_error < 1e-9


@pytest.mark.parametrize("rank", [2, 4])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_end_points_of_proximal_gradient_lift_to_stationary_factors(seed, rank) -> None:
    found = nuclear_minimum(rugged(seed).value, shape=SHAPE, rank=rank, decay=0.6, seed=seed)
    assert found.corresponds
    assert found.rank <= rank


@pytest.mark.slow
@pytest.mark.parametrize("rank", [2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_further_parameters_change_nothing(seed, rank) -> None:
    loss, theta = with_parameters(seed), torch.linspace(-1, 1, 3)
    factors = factor_minimum(loss, shape=SHAPE, rank=rank, decay=0.6, others=theta, seed=seed)
    assert factors.corresponds
    assert factors.others < 1e-9
    nuclear = nuclear_minimum(loss, shape=SHAPE, rank=rank, decay=0.6, others=theta, seed=seed)
    assert nuclear.corresponds


def test_the_loss_has_minima_to_tell_apart_and_some_use_less_than_the_width() -> None:
    loss = rugged(0)
    found = [factor_minimum(loss.value, shape=SHAPE, rank=4, decay=0.6, seed=seed) for seed in range(3)]
    assert len({round(float(one.value.predicted), 6) for one in found}) == 3
    assert any(one.rank < one.width and one.excess < 1 for one in found)


def test_where_the_width_is_used_up_the_certificate_may_fail_at_a_minimum() -> None:
    found = factor_minimum(rugged(0).value, shape=SHAPE, rank=1, decay=0.3, seed=0)
    assert found.corresponds
    assert found.excess > 1


def test_bad_input_gets_one_line() -> None:
    with pytest.raises(UserError, match="without it stationary points need not correspond"):
        factor_minimum(lambda w: w.square().sum(), shape=(2, 2), rank=1, decay=0.0)
    with pytest.raises(UserError, match="rank above 1 has no factors of that width"):
        lifted(torch.eye(2), rank=1)
    with pytest.raises(UserError, match="expected a float64 scalar"):
        MatrixLoss.from_function(lambda w: w, shape=(2, 2))
