"""Full-matrix products from any scale: plain descent, the diagonal theory, stages."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rankwise.errors import UserError
from rankwise.theory import (
    MatrixLoss,
    SingleProduct,
    flow,
    full_attention,
    head_descent,
    head_flow,
)
from tests.theory.rugged import normal, toy
from tests.theory.worked import Worked, everyone_stays, one_leaves_and_returns

LOG10 = math.log(10)


class OnTheDiagonal:
    """A problem of a vector of products, on the diagonals of full matrices."""

    names = ("diagonal",)

    def __init__(self, worked: Worked) -> None:
        self.problem = worked.problem
        self.shapes = ((worked.problem.size, worked.problem.size),)

    def value(self, products: tuple[torch.Tensor, ...]) -> float:
        return self.problem.value(products[0].diagonal())

    def gradient(self, products: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (torch.diag(self.problem.gradient(products[0].diagonal().clone())),)


def test_descent_is_that_of_an_optimizer_on_the_raw_weights() -> None:
    loss, starts = toy(4, 5, 16)
    run = head_descent(loss, starts, log_alpha=math.log(0.1), rate=0.2, steps=60, decay=0.05)
    weights = [nn.Parameter(0.1 * one) for pair in starts for one in pair]
    optimizer = torch.optim.SGD(weights, lr=0.2, weight_decay=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        out = full_attention(loss.inputs, weights[0] @ weights[1], weights[2] @ weights[3])
        ((out - loss.targets).square().sum(-1).mean() / 2).backward()
        optimizer.step()
    assert torch.allclose(run.products[0][-1], (weights[0] @ weights[1]).detach(), atol=1e-12)
    assert torch.allclose(run.products[1][-1], (weights[2] @ weights[3]).detach(), atol=1e-12)
    assert len(run.times) == 61
    assert run.times[-1].item() == pytest.approx(12.0)


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [8, 300])
def test_a_diagonal_start_follows_the_exact_flow_of_diagonal_weights(exponent) -> None:
    worked = everyone_stays()
    log_alpha = -exponent * LOG10
    exact = flow(worked.problem, log_alpha=log_alpha, start=worked.start, until=1.0)
    starts = [tuple(torch.diag(one) for one in worked.start)]
    run = head_flow(OnTheDiagonal(worked), starts, log_alpha=log_alpha, until=1.0 * -log_alpha, points=13)
    found = run.products[0].diagonal(dim1=-2, dim2=-1)
    assert torch.allclose(found, exact.at(run.times / -log_alpha).products, atol=1e-4)


@pytest.mark.slow
def test_a_direction_that_leaves_is_the_limit_of_what_full_matrices_can_follow() -> None:
    """Its way back takes `u^2 - v^2` to `alpha^2`, which a matrix in any basis but its own does not hold."""
    worked = one_leaves_and_returns()
    log_alpha = -20 * LOG10
    exact = flow(worked.problem, log_alpha=log_alpha, start=worked.start, until=24.0)
    starts = [tuple(torch.diag(one) for one in worked.start)]
    run = head_flow(OnTheDiagonal(worked), starts, log_alpha=log_alpha, until=24.0 * -log_alpha, points=25)
    found = run.products[0].diagonal(dim1=-2, dim2=-1)
    expected = exact.at(run.times / -log_alpha).products
    assert torch.allclose(found[:4], expected[:4], atol=1e-3)
    assert float((found[8:20, 3] - expected[8:20, 3]).abs().max()) > 0.05


@pytest.mark.slow
def test_flow_is_the_limit_of_descent() -> None:
    loss = SingleProduct(MatrixLoss.denoising(torch.diag(torch.tensor([1.0, 0.5]))))
    starts = [(normal(2, 3, seed=0), normal(3, 2, seed=1))]
    exact = head_flow(loss, starts, log_alpha=-12.0, until=40.0, points=11, decay=0.1)
    misses = []
    for rate in (0.02, 0.01):
        run = head_descent(
            loss, starts, log_alpha=-12.0, rate=rate, steps=round(40 / rate), decay=0.1, every=round(4 / rate)
        )
        misses.append(float((run.products[0] - exact.products[0]).abs().max()))
    assert misses[0] / misses[1] == pytest.approx(2.0, rel=0.1)
    assert exact.values["product"][-1].tolist() == pytest.approx([0.9, 0.4], abs=1e-3)


@pytest.mark.slow
def test_the_paper_toy_has_stages_and_queries_and_keys_wait_for_values() -> None:
    loss, starts = toy(12, 8, 96)
    run = head_descent(loss, starts, log_alpha=-8 * LOG10, rate=0.1, steps=1500, every=10)
    values, keys = run.values["OV"], run.values["QK"]
    first, second = (run.reached("OV", place, 0.3) for place in (0, 1))
    assert second - first > 10.0
    # A plateau between: the second value is still far below the first, which has settled.
    between = int((run.times < (first + second) / 2).sum())
    assert float(values[between, 1]) < 0.02 * float(values[between, 0])
    assert float(keys[: int((run.times < first).sum()), 0].max()) < 1e-6
    assert float(keys[-1, 0]) > 0.1
    large = head_descent(loss, starts, log_alpha=math.log(0.1), rate=0.1, steps=300, every=10)
    assert large.reached("OV", 1, 0.3) - large.reached("OV", 0, 0.3) < 0.5 * (second - first)


def test_ranks_count_what_has_grown() -> None:
    loss = SingleProduct(MatrixLoss.denoising(torch.diag(torch.tensor([1.0, 0.5]))))
    run = head_descent(loss, [(torch.eye(2), torch.eye(2))], log_alpha=-100.0, rate=0.1, steps=3000, every=10)
    assert run.ranks("product", 0.1)[[0, 150, -1]].tolist() == [0, 1, 2]
    assert math.isnan(run.reached("product", 1, 0.6))
    assert run.log_scales[0][0].tolist() == pytest.approx([-100 + math.log(2) / 2] * 2)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda loss, starts: head_descent(loss, starts[:1], log_alpha=-1.0, rate=0.1, steps=5), "one pair of factors"),
        (lambda loss, starts: head_descent(loss, starts, log_alpha=-1.0, rate=0.0, steps=5), "give positive numbers"),
        (
            lambda loss, starts: head_descent(loss, starts, log_alpha=2.0, rate=9.0, steps=90),
            "gradient by .. is not finite",
        ),
        (
            lambda loss, starts: head_flow(loss, starts, log_alpha=-math.inf, until=1.0),
            "give the logarithm of the scale",
        ),
        (lambda loss, starts: head_flow(loss, starts, log_alpha=-1.0, until=math.inf), "give a positive time"),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call(*toy(4, 5, 8))
    assert "\n" not in str(caught.value)
