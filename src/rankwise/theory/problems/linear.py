"""Diagonal linear networks: regression in which every coefficient is a product of two weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError, require
from rankwise.theory.problem import Problem

if TYPE_CHECKING:
    from jaxtyping import Float


def diagonal_linear(covariance: Float[Tensor, "p p"], target: Float[Tensor, " p"]) -> Problem:
    """A diagonal linear network on the whole population: `L(q) = (q - q*)^T S (q - q*) / 2`.

    Arguments:
        covariance: `S`, of the inputs; symmetric, without negative eigenvalues.
        target: `q*`.

    >>> diagonal_linear(torch.eye(2), torch.tensor([1.0, -2.0])).force(torch.zeros(2).double())
    tensor([ 1., -2.], dtype=torch.float64)
    """
    covariance, target = (torch.as_tensor(one, dtype=torch.float64) for one in (covariance, target))
    size = len(target)
    if target.ndim != 1 or covariance.shape != (size, size):
        raise UserError(
            f"a covariance {tuple(covariance.shape)} and a target {tuple(target.shape)} were given: give [p, p] and [p]"
        )
    if not torch.allclose(covariance, covariance.mT, rtol=1e-10, atol=0):
        raise UserError("the covariance is not symmetric: give (S + S.T) / 2")
    return Problem(
        size=size,
        gradient=lambda q: covariance @ (q - target),
        loss=lambda q: (q - target) @ covariance @ (q - target) / 2,
        hessian=lambda _, rows, columns: covariance[rows][:, columns],
    )


def regression(inputs: Float[Tensor, "n p"], targets: Float[Tensor, " n"]) -> Problem:
    """Linear regression with a diagonal network: `L(q) = |X q - y|^2 / (2 n)`.

    With fewer samples than coefficients many `q` fit; from a small initialization training ends at the one of least l1
    norm (see `basis_pursuit`), from a large one near its start.

    Arguments:
        inputs: `X`, a row for each sample.
        targets: `y`.

    >>> regression(torch.tensor([[1.0, 2.0]]), torch.tensor([2.0])).force(torch.zeros(2).double())
    tensor([2., 4.], dtype=torch.float64)
    """
    inputs, targets = _data(inputs, targets)
    count = len(inputs)
    covariance = inputs.mT @ inputs / count

    def sample_gradient(products: Tensor, chosen: Tensor) -> Tensor:
        rows = inputs[chosen]
        return rows.mT @ (rows @ products - targets[chosen]) / len(chosen)

    return Problem(
        size=inputs.shape[1],
        gradient=lambda q: inputs.mT @ (inputs @ q - targets) / count,
        loss=lambda q: (inputs @ q - targets).square().sum() / (2 * count),
        hessian=lambda _, rows, columns: covariance[rows][:, columns],
        sample_gradient=sample_gradient,
        samples=count,
    )


def basis_pursuit(inputs: Float[Tensor, "n p"], targets: Float[Tensor, " n"]) -> Float[Tensor, " p"]:
    """The solution of `X q = y` of least l1 norm, by linear programming: where `greedy(regression(X, y))` ends.

    >>> basis_pursuit(torch.tensor([[1.0, 2.0]]), torch.tensor([2.0]))
    tensor([0., 1.], dtype=torch.float64)
    """
    inputs, targets = _data(inputs, targets)
    size = inputs.shape[1]
    optimize = require("scipy.optimize", extra="theory")
    answer = optimize.linprog(
        torch.ones(2 * size, dtype=torch.float64).numpy(),
        A_eq=torch.cat([inputs, -inputs], 1).numpy(),
        b_eq=targets.numpy(),
        bounds=(0, None),
        method="highs",
    )
    if not answer.success:
        raise UserError(f"no coefficients fit the targets exactly ({answer.message}): give at least as many as samples")
    positive, negative = torch.from_numpy(answer.x).chunk(2)
    return positive - negative


def _data(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    inputs, targets = (torch.as_tensor(one, dtype=torch.float64) for one in (inputs, targets))
    if inputs.ndim != 2 or targets.shape != inputs.shape[:1]:
        raise UserError(
            f"inputs {tuple(inputs.shape)} and targets {tuple(targets.shape)} were given: give [n, p] and [n]"
        )
    return inputs, targets
