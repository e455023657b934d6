"""Tensor forms decay by their closed forms, in every one of their layers, and are left out if not finite."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rankwise.decay import tensorized
from rankwise.decay.frobenius import FrobeniusDecay
from rankwise.layers.tensorized_conv2d import TensorizedConv2d
from rankwise.layers.tensorized_linear import TensorizedLinear
from rankwise.layers.tensorized_separable import TensorizedSeparableConv2d
from tests.decay import models

FORMS = ("cp", "tucker", "tensor-train")
LAYERS = {
    "linear": lambda form: TensorizedLinear(12, 8, form=form, ranks=2),
    "conv": lambda form: TensorizedConv2d(4, 6, 3, form=form, ranks=2),
    "separable": lambda form: TensorizedSeparableConv2d(12, 8, 3, form=form, ranks=2),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decoupled", [False, True])
def test_cores_move_by_the_gradient_of_the_dense_tensor(layer: str, form: str, decoupled: bool) -> None:
    torch.manual_seed(0)
    module = LAYERS[layer](form).double()
    value = module.tensor.dense().square().sum() / 2
    cores = {id(core) for core in module.cores}
    named = dict(module.named_parameters())
    found = torch.autograd.grad(value, list(module.cores))
    expected = {id(core): gradient for core, gradient in zip(module.cores, found, strict=True)}
    start = {name: each.detach().clone() for name, each in named.items()}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    decay = FrobeniusDecay(nn.Sequential(module), coefficient=0.2, decoupled=decoupled).attach(optimizer)
    assert decay.penalty().item() == pytest.approx(value.item(), rel=1e-9)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in named.items():
        wanted = start[name] - 0.02 * expected[id(parameter)] if id(parameter) in cores else start[name]
        torch.testing.assert_close(parameter.detach(), wanted, rtol=1e-8, atol=1e-9, msg=name)


def test_a_tensor_that_is_not_finite_is_left_out_alone() -> None:
    broken, good = models.Tensorized(), models.Tensorized(seed=1)
    with torch.no_grad():
        broken.cores[0][0, 0] = torch.nan
    both = nn.ModuleList([broken, good])
    before = models.fill_gradients(both)
    decay = FrobeniusDecay(both, coefficient=1.0)
    with pytest.warns(UserWarning, match="left out 1 products"):
        decay.add_gradients()
    for name, parameter in both.named_parameters():
        assert torch.equal(parameter.grad, before[name]) == (name.startswith("0.") or "bias" in name)


def test_frozen_cores_stay() -> None:
    module = models.Tensorized()
    module.cores[1].requires_grad_(False)
    assert set(tensorized.cores(module).values()) == {"cores.0", "cores.2"}
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    assert tensorized.gradients(module) == {}
