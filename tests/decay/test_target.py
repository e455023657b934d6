"""Decay toward a matrix: its gradient without the difference, what it converges to, and where a run started."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rankwise.decay.target import InitializationDecay, TargetDecay
from rankwise.errors import UserError
from rankwise.product.product import Product
from tests.decay import models
from tests.decay.test_frobenius import half_square

CASES = {
    "heads of a fused tensor": (models.gpt2, ("qk", "ov")),
    "grouped heads": (models.llama, ("qk", "ov")),
    "three factors": (lambda: models.chain(9, 3, 4, 7), "linear"),
    "wide": (lambda: models.chain(3, 9, 4), "linear"),
}


def targets(model: nn.Module, sites) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    shapes = {site.name: site.product(model).shape for site in sites}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def distances(model: nn.Module, sites, toward: dict[str, Tensor]) -> Tensor:
    return sum(half_square(site.product(model).dense() - toward[site.name]).sum() for site in sites)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_distance(case: str) -> None:
    make, kind = CASES[case]
    model = make()
    sites = models.products(model, kind)
    toward = targets(model, sites)
    total = distances(model, sites, toward)
    names = [name for site in sites for name in site.parameters]
    wanted = dict.fromkeys(names)
    found = torch.autograd.grad(total, [model.get_parameter(name) for name in wanted])
    before = models.fill_gradients(model)
    decay = TargetDecay(sites, toward, coefficient=0.3)
    assert decay.penalty().item() == pytest.approx(total.item(), rel=1e-10)
    decay.add_gradients()
    for name, gradient in zip(wanted, found, strict=True):
        torch.testing.assert_close(model.get_parameter(name).grad, before[name] + 0.3 * gradient)


def test_a_teachers_product_is_never_multiplied_out() -> None:
    """A target of a million entries as factors, beside a student of a hundredth of them."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(shape, generator=generator) for shape in ((1000, 8), (8, 1000)))
    model = models.Tree({"up.factors.0": left[:, :3].clone(), "up.factors.1": right[:3].clone()})
    (site,) = models.products(model, "linear")
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            largest = max(largest, result.numel() if isinstance(result, Tensor) else 0)
            return result

    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    decay = TargetDecay(models.products(model, "linear"), {site.name: Product(left, right)}, coefficient=1.0)
    with Watch():
        decay.add_gradients()
    assert largest <= 8000
    rest = (left[:, 3:] @ right[3:]).double().square().sum() / 2
    assert decay.penalty().item() == pytest.approx(rest.item(), rel=1e-5)


def test_alone_it_finds_the_best_approximation_that_the_rank_allows() -> None:
    model = models.chain(6, 2, 5)
    sites = models.products(model, "linear")
    (site,) = sites
    toward = targets(model, sites)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    decay = TargetDecay(sites, toward, coefficient=1.0).attach(optimizer)
    for _ in range(800):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    u, s, vh = torch.linalg.svd(toward[site.name])
    best = u[:, :2] * s[:2] @ vh[:2]
    torch.testing.assert_close(site.product(model).dense().detach(), best, rtol=0, atol=1e-5)
    assert decay.penalty().item() == pytest.approx(float(s[2:].square().sum() / 2), rel=1e-6)


def test_targets_are_checked() -> None:
    model = models.chain(6, 2, 5)
    sites = models.products(model, "linear")
    good = torch.zeros(6, 5)
    with pytest.raises(UserError, match=r"there is no target for up.linear: toward= needs one"):
        TargetDecay(sites, {}, coefficient=1.0)
    with pytest.raises(UserError, match=r"targets for down, which are no products of this decay"):
        TargetDecay(sites, {"up.linear": good, "down": good}, coefficient=1.0)
    with pytest.raises(UserError, match=r"has shape \(5, 6\) and its product \(6, 5\): .*orientation"):
        TargetDecay(sites, {"up.linear": good.mT}, coefficient=1.0)
    with pytest.raises(UserError, match="no weight decay of an optimizer to take over: give coefficient="):
        TargetDecay(sites, {"up.linear": good}, coefficient=None)
    with pytest.raises(UserError, match="has no target in closed form"):
        TargetDecay(models.Tensorized(), {}, coefficient=1.0)
    with pytest.raises(UserError, match="ask value_of and gradients_of"):
        TargetDecay(sites, {"up.linear": good}, coefficient=1.0).value(Product(good))


@pytest.mark.parametrize("make", [lambda model: models.products(model, ("qk", "ov")), lambda model: [model]])
def test_decay_to_the_start_pulls_back_and_does_not_mind_the_gauge(make) -> None:
    model = models.gpt2()
    decay = InitializationDecay(iter(make(model)) if isinstance(make(model), list) else make(model), coefficient=1.0)
    assert decay.penalty().item() == 0.0
    models.fill_gradients(model)
    before = {name: each.grad.clone() for name, each in model.named_parameters()}
    decay.add_gradients()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, before[name], rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        fused = model.get_parameter("h.0.attn.c_attn.weight")
        fused[:, :15] *= 2
        fused[:, 15:30] /= 2
    assert decay.penalty().item() == pytest.approx(0.0, abs=1e-10)
    with torch.no_grad():
        fused[:, 15:30] *= 1.5
    moved = models.products(model, "qk")["layers.0.qk"].product(model).dense().detach()
    assert decay.penalty().item() == pytest.approx(float(half_square(moved / 3).sum()), rel=1e-9)


def test_the_start_is_part_of_the_state() -> None:
    model = models.chain(6, 2, 5)
    decay = InitializationDecay(model, coefficient=1.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    away = decay.penalty().item()
    resumed = InitializationDecay(model, coefficient=1.0)
    assert resumed.penalty().item() == 0.0
    resumed.load_state_dict(decay.state_dict())
    assert resumed.penalty().item() == pytest.approx(away, rel=1e-12)
