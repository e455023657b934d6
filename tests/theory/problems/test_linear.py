"""Diagonal linear networks and their l1 minima."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankwise import theory
from rankwise.errors import UserError


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 999))
def test_regression_is_the_loss_that_it_says(samples: int, size: int, seed: int) -> None:
    inputs, targets, at = drawn(seed, samples, size), drawn(seed + 1, samples), drawn(seed + 2, size)
    problem = theory.regression(inputs, targets)

    def loss(q: torch.Tensor) -> torch.Tensor:
        return (inputs @ q - targets).square().mean() / 2

    assert problem.value(at) == pytest.approx(loss(at).item())
    torch.testing.assert_close(problem.force(at), -torch.func.grad(loss)(at))
    everyone = torch.arange(size)
    torch.testing.assert_close(
        problem.hessian_block(at, everyone, everyone), torch.autograd.functional.hessian(loss, at)
    )
    assert problem.sample_gradient is not None
    torch.testing.assert_close(problem.sample_gradient(at, torch.arange(samples)), -problem.force(at))


@given(st.integers(1, 6), st.integers(0, 999))
def test_the_population_is_regression_on_its_covariance(size: int, seed: int) -> None:
    inputs, target, at = drawn(seed, size + 3, size), drawn(seed + 1, size), drawn(seed + 2, size)
    sample = theory.regression(inputs, inputs @ target)
    population = theory.diagonal_linear(inputs.mT @ inputs / (size + 3), target)
    torch.testing.assert_close(population.force(at), sample.force(at))
    assert population.value(at) == pytest.approx(sample.value(at))
    rows, columns = torch.arange(size), torch.tensor([size - 1])
    torch.testing.assert_close(population.hessian_block(at, rows, columns), sample.hessian_block(at, rows, columns))


def test_basis_pursuit_fits_with_the_least_l1_norm() -> None:
    inputs, targets = drawn(0, 3, 7), drawn(1, 3)
    found = theory.basis_pursuit(inputs, targets)
    torch.testing.assert_close(inputs @ found, targets)
    _, _, basis = torch.linalg.svd(inputs)
    for seed in range(50):
        other = found + 0.1 * drawn(seed, 4) @ basis[3:]
        torch.testing.assert_close(inputs @ other, targets)
        assert other.abs().sum() > found.abs().sum()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: theory.diagonal_linear(torch.eye(2), torch.ones(3)), r"give \[p, p\] and \[p\]"),
        (lambda: theory.diagonal_linear(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), torch.ones(2)), "not symmetric"),
        (lambda: theory.regression(torch.ones(3), torch.ones(3)), r"give \[n, p\] and \[n\]"),
        (lambda: theory.regression(torch.ones(3, 2), torch.ones(2)), r"give \[n, p\] and \[n\]"),
        (lambda: theory.basis_pursuit(torch.ones(2, 1), torch.tensor([1.0, 2.0])), "no coefficients fit"),
    ],
)
def test_what_makes_no_problem_is_refused(make, text: str) -> None:
    with pytest.raises(UserError, match=text):
        make()
