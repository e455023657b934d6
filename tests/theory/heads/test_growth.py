"""E-foldings in a step of an optimizer."""

from __future__ import annotations

import math

import pytest
import torch

from rankwise.theory.heads.growth import Growth


def test_growth_under_momentum_is_the_larger_root() -> None:
    weight = torch.nn.Parameter(torch.tensor([1e-6], dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.05, momentum=0.9, weight_decay=0.1)
    sizes = []
    for _ in range(400):
        weight.grad = -0.7 * weight.detach()
        optimizer.step()
        sizes.append(weight.item())
    assert math.log(sizes[-1] / sizes[-2]) == pytest.approx(Growth(0.05, 0.9, 0.1).foldings(0.7), rel=1e-9)
