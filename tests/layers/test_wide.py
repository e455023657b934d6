"""Layers wider than full rank learn with all of their columns; those of the paper's start are zero and stay so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import rankwise as rw
from tests.layers.draws import matrix

LIMIT = 5
WIDTH = 3 * LIMIT


def wide(fill: float, depth: int) -> rw.FactorizedLinear:
    torch.manual_seed(0)
    start = rw.Spectral(fill=fill, spread="ends" if depth else "even")
    return rw.FactorizedLinear(
        8, LIMIT, rank=WIDTH, depth=depth, overcomplete=True, bias=False, init=start, dtype=torch.float64
    )


def trained(layer: nn.Module, steps: int, momentum: float = 0.9) -> list[float]:
    """A regression on noisy answers of another layer, so that gradients never vanish."""
    given, target = matrix(64, 8, seed=3), matrix(64, LIMIT, seed=4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.02, momentum=momentum)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (layer(given) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def column_norms(layer: rw.FactorizedLinear, *, of_gradients: bool = False) -> list[torch.Tensor]:
    """The norm of every inner direction in the first factor and in the last."""
    first, last = layer.factors[0], layer.factors[-1]
    if of_gradients:
        first, last = first.grad, last.grad
    return [first.detach().norm(dim=0), last.detach().norm(dim=1)]


@pytest.mark.parametrize("depth", [0, 1])
def test_the_paper_s_columns_beyond_full_rank_are_dead(depth):
    """Each factor's gradient there is multiplied by the other's zero block: no step of SGD ever leaves it."""
    layer = wide(0.0, depth)
    trained(layer, 50)
    for norms in (*column_norms(layer), *column_norms(layer, of_gradients=True)):
        assert bool((norms[:LIMIT] > 1e-6).all())
        assert bool((norms[LIMIT:] == 0).all())


def test_a_start_with_dead_columns_is_the_layer_of_full_rank_at_every_step():
    layer = wide(0.0, 0)
    exact = rw.FactorizedLinear(8, LIMIT, rank=LIMIT, bias=False, dtype=torch.float64)
    exact.factors[0].data.copy_(layer.factors[0][:, :LIMIT])
    exact.factors[1].data.copy_(layer.factors[1][:LIMIT])
    assert trained(layer, 50) == pytest.approx(trained(exact, 50), rel=1e-9)
    torch.testing.assert_close(exact.weight, layer.weight)


@pytest.mark.parametrize("depth", [0, 1])
def test_ours_learn_with_every_column_from_the_first_step(depth):
    layer, thin = wide(0.1, depth), wide(0.0, depth)
    torch.testing.assert_close(layer.weight, thin.weight)
    before = [factor.detach().clone() for factor in layer.factors]
    losses = trained(layer, 1)
    for norms in column_norms(layer, of_gradients=True):
        assert bool((norms > 1e-3 * norms.max()).all())
    losses += trained(layer, 300)
    assert losses[-1] < 0.9 * losses[0]
    for factor, old in zip((layer.factors[0], layer.factors[-1].mT), (before[0], before[-1].mT), strict=True):
        moved = factor.detach() - old
        # No basis of the inner space in which some directions were left out: the change has full rank.
        assert torch.linalg.matrix_rank(moved, rtol=1e-6) == min(moved.shape)
        assert bool((moved.norm(dim=0) > 0).all())
    # Nor is there one in which the balanced start's dead directions stay: all inner directions carry weight.
    inner = torch.cat([layer.factors[0].detach(), layer.factors[-1].detach().mT])
    assert torch.linalg.matrix_rank(inner, rtol=1e-6) == min(WIDTH, sum((8, LIMIT)))


@pytest.mark.parametrize("scale", [3, 9])
def test_a_wide_convolution_trains_and_folds_to_one_kernel(scale):
    torch.manual_seed(0)
    dense = nn.Conv2d(4, 4, 3, padding=1).double()
    layer = rw.FactorizedConv2d.from_dense(dense, rank=12 * scale, overcomplete=True)
    given = torch.randn(8, 4, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(given), dense(given))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.02)
    target = torch.randn(8, 4, 6, 6, dtype=torch.float64)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (layer(given) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(bool(factor.grad.any(0).all() and factor.grad.any(1).all()) for factor in layer.factors)
    folded = layer.fold()
    assert folded.weight.shape == dense.weight.shape
    torch.testing.assert_close(folded(given), layer(given))
