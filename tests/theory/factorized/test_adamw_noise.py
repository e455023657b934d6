"""AdamW under gradient noise: its decay is an L2 penalty of the noise."""

from __future__ import annotations

import pytest
import torch

from rankwise.errors import UserError
from rankwise.theory import noisy_adamw


@pytest.mark.slow
def test_noise_makes_decay_an_l2_penalty_of_its_own_size() -> None:
    found = noisy_adamw(
        torch.ones(3), decay=torch.tensor([0.1, 0.1, 0.3]), noise=torch.tensor([1.0, 3.0, 1.0]), runs=8192
    )
    assert found.weights.predicted.tolist() == pytest.approx([0.9087, 0.7687, 0.7644], abs=1e-4)
    assert found.weights.relative_error < 5e-3
    ratio = found.penalty.simulated / found.penalty.predicted
    assert ratio.tolist() == pytest.approx([1.0, 1.0, 1.0], abs=0.015)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: noisy_adamw(torch.ones(2), decay=-1.0, noise=1.0), "not positive"),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
