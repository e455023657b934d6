"""Directions that differ by hundreds of orders of magnitude keep their digits through training."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from rankwise.errors import UserError
from rankwise.theory.heads.graded import Graded


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_step_is_the_step_of_the_factors() -> None:
    left, right, gradient = normal(4, 3, seed=0), normal(3, 5, seed=1), normal(4, 5, seed=2)
    pair = Graded.of(left, right, log_alpha=0.0)
    after = pair.moved(pair.basis + 0.1 * pair.force(gradient))
    one, two = after.factors()
    assert torch.allclose(one, left - 0.1 * gradient @ right.mT, atol=1e-13)
    assert torch.allclose(two, right - 0.1 * left.mT @ gradient, atol=1e-13)


def test_the_scale_is_a_logarithm_and_nothing_else() -> None:
    left, right, gradient = normal(4, 4, seed=0), normal(4, 4, seed=1), normal(4, 4, seed=2)
    near, far = (Graded.of(left, right, log_alpha=log_alpha) for log_alpha in (0.0, -5000.0))
    for _ in range(40):
        near, far = (one.moved(one.basis + 0.3 * one.force(gradient)) for one in (near, far))
    assert torch.allclose(near.logs, far.logs + 5000.0, rtol=0, atol=1e-10)
    assert torch.allclose(near.basis, far.basis, atol=1e-12)


def test_small_directions_against_two_hundred_digits() -> None:
    """A constant gradient for 300 steps spreads four directions over 150 decades; float64 would hold sixteen."""
    gradient = torch.diag(torch.tensor([1.0, 0.6], dtype=torch.float64)) + 0.1 * normal(2, 2, seed=3)
    left, right = normal(2, 4, seed=0), normal(4, 2, seed=1)
    pair = Graded.of(left, right, log_alpha=0.0)
    with mpmath.workdps(400):
        step = mpmath.eye(4)
        for i in range(2):
            for j in range(2):
                step[i, 2 + j] = step[2 + j, i] = -mpmath.mpf(gradient[i, j].item()) / 2
        exact = mpmath.matrix(torch.cat([left, right.mT]).tolist())
        for _ in range(300):
            exact = step * exact
            pair = pair.moved(pair.basis + 0.5 * pair.force(gradient))
        determinant = float(mpmath.log(abs(mpmath.det(exact))))
    assert float(pair.logs.max() - pair.logs.min()) > math.log(1e100)
    rows = torch.linalg.slogdet(pair.rows).logabsdet
    assert float(pair.logs.sum() + rows) == pytest.approx(determinant, rel=1e-11)
    # In plain float64 the determinant of the factors is rounding, tens of orders of magnitude too large.
    plain = torch.linalg.slogdet(torch.cat([pair.factors()[0], pair.factors()[1].mT])).logabsdet
    assert abs(float(plain) - determinant) > 20


def test_bad_input_gets_one_line() -> None:
    with pytest.raises(UserError, match="do not multiply"):
        Graded.of(torch.ones(2, 3), torch.ones(2, 2), log_alpha=-1.0)
    with pytest.raises(UserError, match="exactly zero never grow"):
        Graded.of(torch.zeros(2, 2), torch.zeros(2, 2), log_alpha=-1.0)
