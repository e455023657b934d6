"""Losses of a matrix: their gradients, their stacks, and what is none."""

from __future__ import annotations

import pytest
import torch

from rankwise.errors import UserError
from rankwise.theory import MatrixLoss, balance_flow, random_factors
from tests.theory.rugged import normal

LOSSES = {
    "denoising": MatrixLoss.denoising(normal(4, 3, seed=0), scale=0.7),
    "rugged": MatrixLoss.rugged((4, 3), seed=1),
    "from a function": MatrixLoss.from_function(lambda w: w.sin().sum() * w.square().sum(), shape=(4, 3)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_autograd_and_stacks_are_taken_at_once(name) -> None:
    loss, stack = LOSSES[name], normal(2, 5, 4, 3, seed=2)
    tracked = stack.clone().requires_grad_()
    loss.value(tracked).sum().backward()
    assert torch.allclose(loss.gradient(stack), tracked.grad, atol=1e-12)
    assert loss.value(stack).shape == (2, 5)
    assert torch.allclose(loss.value(stack[1, 3]), loss.value(stack)[1, 3])


def test_a_rugged_loss_is_bounded_below() -> None:
    loss = LOSSES["rugged"]
    assert float(loss.value(1e3 * normal(50, 4, 3, seed=3)).min()) > 1e5
    assert float(loss.value(normal(200, 4, 3, seed=4)).min()) > -6.1


@pytest.mark.slow
def test_a_flow_that_blows_up_says_so() -> None:
    loss = MatrixLoss.from_function(lambda w: -w.square().sum().square(), shape=(2, 2))
    with pytest.raises(UserError, match="is the loss bounded below") as caught:
        balance_flow(loss, torch.eye(2), 2 * torch.eye(2), decay=0.1, until=1.0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: MatrixLoss.denoising(torch.eye(2), scale=0.0), "a scale of 0.0 was given"),
        (lambda: MatrixLoss.denoising(torch.full((2, 2), torch.nan)), "the target holds NaN or Inf"),
        (lambda: MatrixLoss.from_function(lambda w: w.float().sum(), shape=(2, 2)), "expected a float64 scalar"),
        (lambda: random_factors((3, 3), rank=0, scale=1.0, seed=0), "a rank of 0 was given"),
        (
            lambda: balance_flow(
                MatrixLoss.from_function(lambda w: (w - w).sum() / (w - w).sum(), shape=(2, 2)),
                torch.eye(2),
                torch.eye(2),
                decay=0.1,
                until=1.0,
            ),
            "gradient of the loss is not finite",
        ),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
