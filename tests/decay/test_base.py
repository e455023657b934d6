"""What all decays share: coefficients, counting, state, sums, and what cannot be decayed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from rankwise.decay.base import Decay
from rankwise.decay.frobenius import FrobeniusDecay
from rankwise.decay.nuclear import NuclearDecay
from rankwise.errors import UserError
from rankwise.sites.factor import Factor
from rankwise.sites.site import Site
from rankwise.sites.sites import Sites
from tests.decay import models
from tests.decay.test_frobenius import half_square


@pytest.mark.parametrize("coefficient", [-0.1, math.inf, math.nan, "0.1", True])
def test_coefficients_are_numbers_of_at_least_zero(coefficient: object) -> None:
    with pytest.raises(UserError, match=r"coefficient must be .* got .*finite number of at least 0"):
        FrobeniusDecay(models.chain(4, 2, 3), coefficient=coefficient)
    scheduled = FrobeniusDecay(models.chain(4, 2, 3), coefficient=lambda step: coefficient)
    for parameter in scheduled.parameters:
        parameter.grad = torch.zeros_like(parameter)
    with pytest.raises(UserError, match="the schedule at step 0 gave"):
        scheduled.add_gradients()


@pytest.mark.parametrize("attached", [False, True])
def test_a_schedule_is_asked_once_a_step_for_the_steps_made(attached: bool) -> None:
    asked = []

    def schedule(step: int) -> float:
        asked.append(step)
        return 0.01 * (step + 1)

    model = models.llama()
    sites = models.products(model, ("qk", "ov"))
    decay = FrobeniusDecay(sites, coefficient=schedule)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    if attached:
        decay.attach(optimizer)
    expected = models.dense_gradients(model, sites, half_square)
    for step in range(3):
        before = models.fill_gradients(model)
        optimizer.step() if attached else decay.add_gradients()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, before[name] + 0.01 * (step + 1) * expected[name])
    assert asked == [0, 1, 2]
    again = FrobeniusDecay(sites, coefficient=schedule)
    again.load_state_dict(decay.state_dict())
    models.fill_gradients(model)
    again.add_gradients()
    assert asked[-1] == 3


def test_a_coefficient_of_zero_changes_nothing() -> None:
    model = models.llama()
    before = models.fill_gradients(model)
    FrobeniusDecay(models.products(model, "qk"), coefficient=0.0).add_gradients()
    assert all(torch.equal(each.grad, before[name]) for name, each in model.named_parameters())


def test_without_an_optimizer_there_must_be_a_coefficient_and_no_step_of_its_own() -> None:
    with pytest.raises(UserError, match="no optimizer to take a coefficient over from"):
        FrobeniusDecay(models.chain(4, 2, 3)).add_gradients()
    with pytest.raises(UserError, match="decoupled=True asks for a step of its own"):
        FrobeniusDecay(models.chain(4, 2, 3), coefficient=0.1, decoupled=True).add_gradients()


@pytest.mark.parametrize("kind", [FrobeniusDecay, NuclearDecay])
def test_what_is_not_finite_is_left_out_and_said_once(kind: type[Decay]) -> None:
    model = models.llama()
    sites = models.products(model, "qk")
    with torch.no_grad():
        model.get_parameter("layers.0.self_attn.q_proj.weight")[0, 0] = torch.nan
    decay = kind(sites, coefficient=0.1)
    before = models.fill_gradients(model)
    with pytest.warns(UserWarning, match=r"left out 1 products whose gradient is not finite"):
        decay.add_gradients()
    decay.add_gradients()  # warnings are errors: it is said once
    assert decay.left_out == 2
    for name, parameter in model.named_parameters():
        decayed = "layers.1.self_attn.q_proj" in name or "layers.1.self_attn.k_proj" in name
        assert torch.equal(parameter.grad, before[name]) != decayed, name


def test_gradients_that_are_not_finite_are_the_optimizers_matter() -> None:
    """The decay adds its part to them, and what becomes of the parameters shows at the next step."""
    model = models.llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    decay = FrobeniusDecay(models.products(model, "qk"), coefficient=0.1).attach(optimizer)
    models.fill_gradients(model)
    model.get_parameter("layers.1.self_attn.k_proj.weight").grad.fill_(torch.inf)
    optimizer.step()
    models.fill_gradients(model)
    with pytest.warns(UserWarning, match="left out 1 products"):
        optimizer.step()
    assert model.get_parameter("layers.0.self_attn.q_proj.weight").isfinite().all()
    assert decay.left_out == 1


def test_products_that_share_a_factor_are_all_read_before_it_moves() -> None:
    """As a latent projection stands in the products of queries and keys, and of values and outputs."""
    model = models.Tree(models.state({"shared": (6, 4), "one": (4, 5), "two": (4, 7)}))
    sites = Sites(
        [
            Site(name=name, kind="linear", factors=(Factor("shared", "a b -> a b"), Factor(name, "a b -> a b")))
            for name in ("one", "two")
        ],
        source=model,
    )
    expected = models.dense_gradients(model, sites, half_square)
    start = {name: each.detach().clone() for name, each in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    FrobeniusDecay(sites, coefficient=0.1, decoupled=True).attach(optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), start[name] - 0.01 * expected[name], rtol=1e-12, atol=1e-12)


def test_the_penalty_is_the_sum_over_all_products() -> None:
    model = models.llama()
    sites = models.products(model, ("qk", "ov"))
    dense = [site.product(model).dense().detach() for site in sites]
    assert FrobeniusDecay(sites).penalty().item() == pytest.approx(
        sum(float(half_square(each).sum()) for each in dense)
    )
    concatenated = 0.0
    for matrices in dense:
        # Two groups of three heads that share keys, or values: their matrices stand above one another.
        concatenated += float(torch.linalg.svdvals(matrices.reshape(2, 30, 10)).sum())
    assert NuclearDecay(sites).penalty().item() == pytest.approx(concatenated)


def test_state_and_words() -> None:
    model = models.llama()
    decay = FrobeniusDecay(models.products(model, ("qk", "ov")), coefficient=0.1)
    assert repr(decay) == "FrobeniusDecay(4 products, coefficient=0.1)"
    assert decay.state_dict() == {"steps": 0, "left_out": 0, "taken_over": {}}
    assert len(decay.products) == 4
    tensorized = FrobeniusDecay(nn.ModuleList([models.Tensorized(), models.chain(4, 2, 3)]))
    assert repr(tensorized) == "FrobeniusDecay(1 products, 1 modules, coefficient=taken over)"


@pytest.mark.parametrize("decoupled", [False, True])
def test_training_goes_where_the_dense_penalty_leads(decoupled: bool) -> None:
    """Twenty steps of plain descent on a task, beside autograd of the task plus the dense penalty."""

    def run(step: Callable[[nn.Module, torch.optim.Optimizer], None]) -> torch.Tensor:
        model = models.chain(6, 3, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        step(model, optimizer)
        return product(model).detach()

    def product(model: nn.Module) -> torch.Tensor:
        return model.get_parameter("up.factors.0") @ model.get_parameter("up.factors.1")

    target = torch.ones(6, 5, dtype=torch.float64)

    def ours(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        FrobeniusDecay(models.products(model, "linear"), coefficient=0.3, decoupled=decoupled).attach(optimizer)
        for _ in range(20):
            optimizer.zero_grad()
            half_square(product(model) - target).backward()
            optimizer.step()

    def theirs(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(20):
            optimizer.zero_grad()
            (half_square(product(model) - target) + 0.3 * half_square(product(model))).backward()
            optimizer.step()

    torch.testing.assert_close(run(ours), run(theirs), rtol=1e-10, atol=1e-10)
