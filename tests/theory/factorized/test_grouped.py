"""Heads that share a factor are balanced as a group, and not one by one."""

from __future__ import annotations

import pytest
import torch

from rankwise.errors import UserError
from rankwise.theory import (
    MatrixLoss,
    grouped_equilibrium,
    grouped_flow,
)
from tests.theory.rugged import normal


def test_heads_that_share_a_factor_are_balanced_as_a_group() -> None:
    losses = [MatrixLoss.rugged((3, 4), seed=seed, waves=5) for seed in range(2)]
    law = grouped_flow(losses, normal(2, 3, 2, seed=1) / 2, normal(2, 4, seed=2), decay=0.2, until=2.0, points=9)
    assert law.imbalance.relative_error < 1e-8
    assert law.single.relative_error > 0.1
    found = grouped_equilibrium(normal(3, 4, 4, seed=3), decay=0.6, rank=4)
    assert found.values.error < 1e-6
    assert found.penalty.error < 1e-6
    assert found.single_grams.error > 0.5
    assert found.heads_alone > 1.2 * found.penalty.predicted.item()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: grouped_flow([], torch.ones(2, 3, 2), torch.ones(2, 4), decay=0.1, until=1.0), "0 losses were given"),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
