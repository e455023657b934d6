"""The loss of an attention head with full matrices, and its gradient."""

from __future__ import annotations

import pytest
import torch

from rankwise.errors import UserError
from rankwise.theory import (
    HeadLoss,
    full_attention,
)
from tests.theory.rugged import normal, toy


def test_the_gradient_of_a_head_is_that_of_autograd() -> None:
    loss, _ = toy(5, 4, 6)
    products = [normal(5, 5, seed=place).requires_grad_() for place in (1, 2)]
    plain = tuple(one.detach() for one in products)
    written = full_attention(loss.inputs, *products)
    value = (written - loss.targets).square().sum(-1).mean() / 2
    value.backward()
    assert loss.value(plain) == pytest.approx(float(value.detach()), rel=1e-13)
    for found, one in zip(loss.gradient(plain), products, strict=True):
        assert torch.allclose(found, one.grad, atol=1e-13)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda loss, starts: HeadLoss(loss.inputs, loss.targets[:2]), "samples, tokens, width"),
        (lambda loss, starts: HeadLoss(loss.inputs * torch.nan, loss.targets), "NaN or Inf"),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call(*toy(4, 5, 8))
    assert "\n" not in str(caught.value)
