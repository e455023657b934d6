"""Decay of an adapter is decay of the update that the network feels, with its scaling."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rankwise.decay.adapters import AdapterDecay
from rankwise.errors import UserError
from rankwise.sites.find import find
from rankwise.sites.sites import Sites
from tests.decay import models
from tests.decay.test_frobenius import half_square


def scaled(*scalings: float) -> tuple[torch.nn.Module, Sites]:
    """Adapters of equal shapes, each with a scaling of its own."""
    shapes = {
        f"layers.{i}.up.lora_{name}.weight": shape
        for i in range(len(scalings))
        for name, shape in (("B", (9, 3)), ("A", (3, 7)))
    }
    model = models.Tree(models.state(shapes))
    sites = models.products(model, "lora")
    return model, Sites([replace(site, scaling=one) for site, one in zip(sites, scalings, strict=True)], source=model)


def test_the_gradient_is_that_of_the_scaled_update() -> None:
    """Also for adapters that are worked on together and scale differently."""
    model, sites = scaled(2.0, 0.5)
    total = sum(half_square(site.scaling * site.product(model).dense()) for site in sites)
    names = [name for name, _ in model.named_parameters()]
    expected = torch.autograd.grad(total, [model.get_parameter(name) for name in names])
    before = models.fill_gradients(model)
    decay = AdapterDecay(sites, coefficient=0.3)
    assert decay.penalty().item() == pytest.approx(total.item(), rel=1e-12)
    decay.add_gradients()
    for name, gradient in zip(names, expected, strict=True):
        torch.testing.assert_close(model.get_parameter(name).grad, before[name] + 0.3 * gradient)


def test_what_is_no_adapter_is_refused() -> None:
    with pytest.raises(UserError, match=r"layers.0.qk, .* is no adapter"):
        AdapterDecay(models.products(models.llama(), ("qk", "ov")))
    with pytest.raises(UserError, match="is no adapter"):
        AdapterDecay(models.Tensorized())


def test_an_adapter_of_peft_is_pulled_to_the_base_weights() -> None:
    """The merged weight minus the base weight is what decays; PEFT's own scaling is read from its model."""
    peft = pytest.importorskip("peft")
    base = torch.nn.ModuleDict({"q": torch.nn.Linear(8, 8, bias=False)})
    base.forward = lambda x: base["q"](x)
    start = base["q"].weight.detach().clone()
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, lora_alpha=6, target_modules=["q"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    decay = AdapterDecay(find(model).select(kind="lora"), coefficient=0.1)
    layer = next(each for name, each in model.named_modules() if name.endswith(".q"))
    update = layer.get_delta_weight("default").detach()
    assert decay.penalty().item() == pytest.approx(float(half_square(update)), rel=1e-5)
    optimizer = torch.optim.AdamW(
        [each for each in model.parameters() if each.requires_grad], lr=0.05, weight_decay=0.0
    )
    decay.attach(optimizer)
    for _ in range(5):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        optimizer.step()
    assert layer.get_delta_weight("default").norm() < update.norm()
    assert torch.equal(layer.base_layer.weight, start)
