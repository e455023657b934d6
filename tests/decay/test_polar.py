"""Polar decay takes the same off every singular value, whatever the factors are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rankwise.decay.polar import PolarDecay
from rankwise.errors import UserError
from rankwise.product.groups import concatenated
from rankwise.product.product import Product
from tests.decay import models
from tests.product.draws import gaussian

RATE, COEFFICIENT = 0.1, 0.2


def values(model: nn.Module, sites) -> list[torch.Tensor]:
    found = []
    for site in sites:
        product = site.product(model)
        if site.batch and len(site.batch) > 1:
            product = concatenated(product, 1)
        found.append(torch.linalg.svdvals(product.dense().detach())[..., : product.max_rank])
    return found


def step(model: nn.Module, sites, *, steps: int = 1) -> PolarDecay:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    decay = PolarDecay(sites, coefficient=COEFFICIENT).attach(optimizer)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    return decay


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (models.gpt2, ("qk", "ov")),
        (models.llama, ("qk", "ov")),
        (lambda: models.chain(9, 3, 7), "linear"),
        (lambda: models.chain(9, 3, 4, 7), "linear"),
        (models.gpt2, "mlp"),
    ],
)
def test_every_singular_value_falls_by_rate_times_coefficient(make, kind) -> None:
    model = make()
    sites = models.products(model, kind)
    before = values(model, sites)
    step(model, sites)
    for one, two in zip(before, values(model, sites), strict=True):
        # Both factors take half of it, so that the product lacks a quarter of its square: a part in ten thousand.
        torch.testing.assert_close(one - two, torch.full_like(one, RATE * COEFFICIENT), rtol=0.1, atol=1e-4)


def test_it_does_not_see_the_scale_of_either_factor() -> None:
    """`X` turns into `G^{-1} X G` under a change of gauge, so that the product moves the same way."""
    product = gaussian((9, 3, 7), 0)
    turn = gaussian((3, 3), 1).left
    turned = Product(product.left @ turn, torch.linalg.solve(turn, product.right))
    decay = PolarDecay(models.chain(3, 2, 3), coefficient=1.0)
    for each in (product, turned):
        first, last = decay.gradients(each)
        moved = (each.left - 0.01 * first) @ (each.right - 0.01 * last)
        fallen = torch.linalg.svdvals(each.dense()) - torch.linalg.svdvals(moved)
        torch.testing.assert_close(fallen[:3], torch.full((3,), 0.01).double(), rtol=0.02, atol=0)


def test_values_come_to_zero_without_turning_around_and_stay() -> None:
    model = models.chain(6, 3, 5)
    sites = models.products(model, "linear")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 0.3
    start = values(model, sites)[0]
    needed = int(start[0] / (RATE * COEFFICIENT)) + 1
    step(model, sites, steps=2 * needed)
    ended = values(model, sites)[0]
    assert (ended < 0.1 * RATE * COEFFICIENT).all()
    assert all(each.isfinite().all() for each in model.parameters())


def test_the_decay_of_a_zero_factor_is_zero() -> None:
    model = models.chain(6, 3, 5)
    with torch.no_grad():
        model.get_parameter("up.factors.1").zero_()
    start = model.get_parameter("up.factors.0").detach().clone()
    step(model, models.products(model, "linear"))
    torch.testing.assert_close(model.get_parameter("up.factors.0").detach(), start, rtol=1e-12, atol=0)


def test_it_is_a_step_and_no_gradient() -> None:
    decay = PolarDecay(models.chain(6, 3, 5), coefficient=0.1)
    with pytest.raises(UserError, match="has no gradient to add"):
        decay.add_gradients()
    decay.decoupled = False
    with pytest.raises(UserError, match="cannot be coupled"):
        decay.attach(torch.optim.SGD([nn.Parameter(torch.zeros(1))]))


def test_its_value_is_the_nuclear_norm_which_falls_by_its_rank() -> None:
    model = models.chain(9, 3, 7)
    sites = models.products(model, "linear")
    decay = PolarDecay(sites, coefficient=COEFFICIENT)
    before = decay.penalty().item()
    step(model, sites)
    assert before - decay.penalty().item() == pytest.approx(3 * RATE * COEFFICIENT, rel=0.05)


def test_without_a_coefficient_it_takes_the_optimizers_over() -> None:
    model = models.chain(9, 3, 7)
    sites = models.products(model, "linear")
    before = values(model, sites)[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=COEFFICIENT, eps=1e30)
    PolarDecay(sites).attach(optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    fallen = before - values(model, sites)[0]
    torch.testing.assert_close(fallen, torch.full_like(fallen, RATE * COEFFICIENT), rtol=0.05, atol=0)
