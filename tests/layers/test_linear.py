"""The factorized linear layer computes what its dense weight says, in either way, and travels like any module."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import rankwise as rw
from rankwise.errors import UserError
from rankwise.layers.conv1d import FactorizedConv1D
from rankwise.layers.linear import FactorizedLinear
from tests.layers.draws import generator


def layer(rank: int = 3, depth: int = 0, *, bias: bool = True, wide: bool = False) -> FactorizedLinear:
    torch.manual_seed(0)
    return FactorizedLinear(7, 5, rank=rank, depth=depth, bias=bias, overcomplete=wide, dtype=torch.float64)


def inputs(*batch: int) -> torch.Tensor:
    return torch.randn(*batch, 7, generator=generator(1), dtype=torch.float64)


@given(
    rank=st.integers(1, 11),
    depth=st.integers(0, 2),
    bias=st.booleans(),
    batch=st.lists(st.integers(1, 3), max_size=2).map(tuple),
)
def test_both_ways_compute_what_the_dense_weight_computes(rank, depth, bias, batch):
    made = layer(rank, depth, bias=bias, wide=rank > 5)
    expected = nn.functional.linear(inputs(*batch), made.weight, made.bias)
    for execution in ("two-step", "one-step", "auto"):
        made.execution = execution
        torch.testing.assert_close(made(inputs(*batch)), expected)
    torch.testing.assert_close(made.fold()(inputs(*batch)), expected)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_both_ways_have_the_same_gradients(depth):
    made = layer(depth=depth)
    gradients = []
    for execution in ("two-step", "one-step"):
        made.execution = execution
        made.zero_grad()
        made(inputs(6)).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in made.parameters()])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two)


def test_the_weight_is_differentiable_and_the_product_is_live():
    made = layer()
    made.weight.sum().backward()
    assert all(factor.grad is not None for factor in made.factors)
    with torch.no_grad():
        made.factors[0].zero_()
    assert made.product.left.data_ptr() == made.factors[0].data_ptr()
    assert torch.equal(made.weight, torch.zeros(5, 7, dtype=torch.float64))


@pytest.mark.parametrize("bias", [True, False])
def test_a_dense_layer_is_taken_as_it_is(bias):
    dense = nn.Linear(7, 5, bias=bias).double().eval().requires_grad_(False)
    before = dense.weight.clone()
    made = FactorizedLinear.from_dense(dense, rank=5)
    torch.testing.assert_close(made.weight, dense.weight)
    torch.testing.assert_close(made(inputs(4)), dense(inputs(4)))
    assert torch.equal(dense.weight, before)
    assert not made.training
    assert not any(parameter.requires_grad for parameter in made.parameters())
    assert (made.bias is None) is not bias


def test_folding_restores_the_dense_layer():
    dense = nn.Linear(7, 5)
    folded = FactorizedLinear.from_dense(dense.eval(), rank=5).fold()
    assert type(folded) is nn.Linear
    assert not folded.training
    assert folded.weight.dtype == torch.float32
    torch.testing.assert_close(folded.weight, dense.weight, atol=1e-6, rtol=1e-5)
    assert torch.equal(folded.bias, dense.bias)
    assert folded.bias.data_ptr() != dense.bias.data_ptr()


def test_a_new_layer_starts_like_a_new_dense_layer():
    torch.manual_seed(3)
    dense = nn.Linear(64, 48)
    torch.manual_seed(3)
    made = FactorizedLinear(64, 48, rank=48)
    torch.testing.assert_close(made.weight, dense.weight, atol=1e-6, rtol=1e-5)
    assert torch.equal(made.bias, dense.bias)


def test_a_draw_of_ones_own_replaces_the_dense_scheme():
    drawn = rw.Spectral(draw=lambda weight: nn.init.trunc_normal_(weight, std=0.02))
    made = FactorizedLinear(300, 200, rank=200, init=drawn)
    assert made.weight.std().item() == pytest.approx(0.02, rel=0.05)
    dense = nn.Linear(300, 200)
    again = FactorizedLinear.from_dense(dense, rank=200, init=drawn)
    assert again.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert torch.equal(again.bias, dense.bias)


def test_resetting_draws_anew():
    made = layer(rank=5)
    before = made.weight.detach().clone()
    made.reset_parameters()
    assert not torch.allclose(made.weight, before)


def test_it_is_one_site():
    sites = rw.find(nn.ModuleDict({"up": layer(depth=1), "head": nn.Linear(5, 4)}))
    assert sites.names == ("up.linear", "head.matrix")
    assert sites["up.linear"].shape == (5, 7)
    made = nn.ModuleDict({"up": layer(depth=1)})
    torch.testing.assert_close(rw.find(made)["up.linear"].product(made).dense(), made["up"].weight)


@pytest.mark.parametrize("rank", [2, 5])
def test_exported_for_every_batch_size(rank):
    made = layer(rank)
    exported = torch.export.export(made, (inputs(4),), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    for batch in (2, 3, 1000):
        torch.testing.assert_close(exported(inputs(batch)), made(inputs(batch)))


@pytest.mark.parametrize("execution", ["two-step", "one-step"])
def test_under_autocast_the_output_is_in_low_precision_and_the_gradients_are_not(execution):
    made = layer().float()
    made.execution = execution
    with torch.autocast("cpu", torch.bfloat16):
        output = made(inputs(4).float())
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in made.parameters())
    torch.testing.assert_close(output.double(), made.double()(inputs(4)), atol=0.05, rtol=0.05)


def test_the_cheaper_way_is_taken():
    thin, wide = FactorizedLinear(64, 64, rank=8), FactorizedLinear(64, 64, rank=64)
    for batch in (1, 10_000):
        assert thin.execution_at(torch.empty(batch, 64)) == "two-step"
    # For few tokens, forming the weight costs more than it saves.
    assert wide.execution_at(torch.empty(1, 64)) == "two-step"
    assert wide.execution_at(torch.empty(10_000, 64)) == "one-step"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank must be at least 1, got 0"),
        ({"rank": 6}, "rank 6 is above 5, the largest rank of a 5x7 matrix"),
        ({"rank": 2, "depth": -1}, "depth, the number of inner factors, must be 0 or more, got -1"),
        ({"rank": 2, "execution": "fast"}, "execution must be one of auto, two-step, one-step, got 'fast'"),
        ({"rank": 2, "init": "zeros"}, "init must be 'spectral'"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings, message):
    with pytest.raises(UserError, match=message):
        FactorizedLinear(7, 5, **settings)


def test_a_layer_of_another_kind_is_refused():
    for kind, dense in (
        (FactorizedLinear, nn.Conv2d(3, 3, 3)),
        (rw.FactorizedConv2d, nn.Linear(3, 3)),
        (rw.FactorizedEmbedding, nn.Linear(3, 3)),
        (FactorizedConv1D, nn.Linear(3, 3)),
    ):
        with pytest.raises(UserError, match=f"from_dense takes the place of .* got a {type(dense).__name__}"):
            kind.from_dense(dense, rank=2)
