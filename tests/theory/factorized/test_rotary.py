"""Rotary heads: a law for each frequency, and none for the head."""

from __future__ import annotations

import pytest
import torch

from rankwise.errors import UserError
from rankwise.product.pairs import RotaryPairs
from rankwise.theory import (
    RotaryHead,
    rotary_equilibrium,
    rotary_flow,
)
from tests.theory.rugged import normal


@pytest.mark.parametrize("layout", [pytest.param("half", marks=pytest.mark.slow), "interleaved"])
def test_rotary_heads_obey_the_law_of_each_frequency_alone(layout) -> None:
    head = RotaryHead(normal(7, 4, seed=0), targets=normal(7, 7, seed=1), pairs=RotaryPairs(layout))
    law = rotary_flow(head, 0.8 * normal(4, 4, seed=2), 0.8 * normal(4, 4, seed=3), decay=0.15, until=1.0, points=6)
    assert law.pairs.relative_error < 1e-8
    assert law.whole.relative_error > 0.1
    assert law.unrotated.predicted.numel() == 0


def test_partial_rotation_leaves_the_full_law_to_what_does_not_turn() -> None:
    pairs = RotaryPairs("half", rotated=2)
    head = RotaryHead(normal(6, 4, seed=0), targets=normal(6, 6, seed=1), pairs=pairs)
    law = rotary_flow(head, 0.8 * normal(4, 5, seed=2), 0.8 * normal(5, 4, seed=3), decay=0.15, until=1.0, points=6)
    assert law.pairs.relative_error < 1e-8
    assert law.unrotated.relative_error < 1e-8
    assert law.unrotated.predicted.shape[-2:] == (3, 3)
    assert law.whole.relative_error > 0.1


def test_rotary_decay_is_the_pair_sum_and_not_the_nuclear_norm() -> None:
    head = RotaryHead(normal(12, 6, seed=0), targets=3 * normal(12, 12, seed=1), pairs=RotaryPairs("half"))
    found = rotary_equilibrium(head, normal(6, 6, seed=2), normal(6, 6, seed=3), decay=0.02)
    assert found.residual < 1e-10
    assert found.penalty.relative_error < 1e-8
    assert found.nuclear < 0.95 * found.penalty.predicted.item()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: RotaryHead(torch.ones(3, 2), targets=torch.ones(2, 2), pairs=RotaryPairs("half")), "for 3 tokens"),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
