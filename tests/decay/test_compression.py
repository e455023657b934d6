"""Compression-rate scaling is weight decay on the factors, and no more than that."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rankwise.decay.compression import CompressionRateDecay
from rankwise.errors import UserError
from rankwise.layers.tensorized_linear import TensorizedLinear
from tests.decay import models


@pytest.mark.parametrize(("given", "used"), [(None, (9 * 3 + 3 * 7) / (9 * 7)), (0.25, 0.25)])
def test_factors_decay_by_the_ratio(given: float | None, used: float) -> None:
    model = models.chain(9, 3, 7)
    before = models.fill_gradients(model)
    decay = CompressionRateDecay(models.products(model, "linear"), coefficient=0.1, ratio=given)
    decay.add_gradients()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, before[name] + 0.1 * used * parameter.detach())
    squares = sum(each.detach().square().sum() for each in model.parameters())
    assert decay.penalty().item() == pytest.approx(float(used * squares / 2), rel=1e-12)


def test_taking_over_it_is_the_optimizers_decay_times_the_ratio() -> None:
    ended = []
    for ours in (True, False):
        model = models.chain(9, 3, 7)
        ratio = (9 * 3 + 3 * 7) / (9 * 7)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=0.1 * (1 if ours else ratio))
        if ours:
            CompressionRateDecay(models.products(model, "linear")).attach(optimizer)
        for seed in range(3):
            models.fill_gradients(model, seed=seed)
            optimizer.step()
        ended.append([each.detach().clone() for each in model.parameters()])
    for one, two in zip(*ended, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_a_group_that_shares_keys_counts_them_once() -> None:
    model = models.llama()
    sites = models.products(model, "qk")
    decay = CompressionRateDecay(sites)
    product = sites["layers.0.qk"].product(model)
    assert decay.ratio_of(product) == (24 * 10 + 8 * 10) / (6 * 100)


def test_cores_of_a_tensorized_layer_decay_by_what_they_save() -> None:
    """The baseline of the tensor comparison: `core * compressed / original`; the bias is no core."""
    layer = TensorizedLinear(12, 8, form="tucker", ranks=2, modes=(2, 4, 3, 4)).double()
    cores = {name: core for name, core in layer.named_parameters() if name != "bias"}
    ratio = sum(core.numel() for core in cores.values()) / 96
    before = models.fill_gradients(layer)
    decay = CompressionRateDecay(nn.Sequential(layer), coefficient=0.1)
    decay.add_gradients()
    for name, core in cores.items():
        torch.testing.assert_close(core.grad, before[name] + 0.1 * ratio * core.detach())
    assert torch.equal(layer.bias.grad, before["bias"])
    squares = sum(core.detach().square().sum() for core in cores.values())
    assert decay.penalty().item() == pytest.approx(float(ratio * squares / 2), rel=1e-12)


def test_a_ratio_is_checked_and_asked_for() -> None:
    with pytest.raises(UserError, match="ratio must be a positive number"):
        CompressionRateDecay(models.chain(9, 3, 7), ratio=0.0)
    with pytest.raises(UserError, match=r"Tensorized does not say how large its tensor is .*: give ratio="):
        CompressionRateDecay(models.Tensorized())
    CompressionRateDecay(models.Tensorized(), ratio=0.5)
