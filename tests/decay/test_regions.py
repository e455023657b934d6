"""Decay of a part of a tensor is what an optimizer would do to that part."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rankwise.decay.hooks import Scaling
from rankwise.decay.regions import RegionDecay, narrowed


def by_columns() -> Tensor:
    return torch.tensor([0.2, 0.0, 0.1]).expand(4, 3)


def drawn(dtype: torch.dtype = torch.float64) -> nn.Parameter:
    parameter = nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).to(dtype))
    parameter.grad = torch.ones_like(parameter)
    return parameter


def test_coefficients_are_kept_as_small_as_they_are() -> None:
    assert narrowed(by_columns()).shape == (1, 3)
    assert narrowed(by_columns().mT).shape == (3, 1)
    assert narrowed(torch.full((4, 3), 0.1)).shape == (1, 1)
    assert narrowed(torch.eye(3)).shape == (3, 3)


@torch.no_grad()
@pytest.mark.parametrize("manner", ["coupled", "decoupled"])
def test_it_is_weight_decay_entry_by_entry(manner: str) -> None:
    parameter = drawn()
    start = parameter.detach().clone()
    region = RegionDecay("w", parameter, by_columns(), manner)
    assert region.share == pytest.approx(2 / 3)
    assert region.values == pytest.approx([0.1, 0.2])
    region.apply(0.5, Scaling())
    if manner == "coupled":
        torch.testing.assert_close(parameter.grad, 1 + start * by_columns(), rtol=1e-6, atol=1e-7)
        assert torch.equal(parameter, start)
    else:
        torch.testing.assert_close(parameter.detach(), start * (1 - 0.5 * by_columns()), rtol=1e-6, atol=1e-7)


@torch.no_grad()
def test_scaled_skipped_and_absent_gradients() -> None:
    parameter = drawn()
    start = parameter.detach().clone()
    region = RegionDecay("w", parameter, by_columns(), "coupled")
    region.apply(0.5, Scaling(torch.tensor(8.0), torch.tensor(0.0)))
    torch.testing.assert_close(parameter.grad, 1 + 8 * start * by_columns(), rtol=1e-6, atol=1e-6)
    moving = RegionDecay("w", parameter, by_columns(), "decoupled")
    moving.apply(0.5, Scaling(found_inf=torch.tensor(1.0)))
    parameter.grad = None
    moving.apply(0.5, Scaling())
    region.apply(0.5, Scaling())
    assert torch.equal(parameter, start)


@torch.no_grad()
def test_short_types_lose_no_small_decay() -> None:
    """`1 - 1e-4` is 1 in bfloat16: computed there, nothing would ever decay."""
    parameter = drawn(torch.bfloat16)
    parameter.fill_(1.0)
    RegionDecay("w", parameter, torch.full((4, 3), 1.0), "decoupled").apply(4e-3, Scaling())
    assert (parameter < 1).all()


def test_reach() -> None:
    region = RegionDecay("w", drawn(), by_columns(), "coupled")
    entries = torch.zeros(4, 3, dtype=torch.bool)
    entries[:, 1] = True
    assert not region.reaches(entries)
    entries[2, 2] = True
    assert region.reaches(entries)
