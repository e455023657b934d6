"""What layers start with: the statistics of both kinds of start, structured kernels, and whether wide layers learn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import rankwise as rw
from rankwise.errors import UserError
from tests.steer.descent import descend, distance, gaussian, run

kaiming = nn.init.kaiming_normal_
CHANNELS = 64
SIDE = 3 * CHANNELS
SCALES = {0.037: 7, 0.111: 21, 0.333: 64, 1.0: 192}
"""Rank scales of the paper's residual nets, and the ranks of their widest layers."""


def kernel(rank: int, init: object, *, seed: int = 0) -> Tensor:
    """The spectrum of a 3x3 convolution of 64 channels, read as a matrix of 192 x 192."""
    torch.manual_seed(seed)
    made = rw.FactorizedConv2d(CHANNELS, CHANNELS, 3, rank=rank, bias=False, dtype=torch.float64, init=init)
    return made.product.detach().spectrum().values


def dense_kernel(seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return (
        rw.FactorizedConv2d(
            CHANNELS, CHANNELS, 3, rank=SIDE, bias=False, dtype=torch.float64, init=rw.Spectral(draw=kaiming)
        )
        .product.detach()
        .spectrum()
        .values
    )


def test_factors_drawn_by_kaiming_make_a_product_of_six_times_the_energy_at_every_rank() -> None:
    dense = dense_kernel()
    assert dense.square().sum().item() == pytest.approx(2 * SIDE / 3, rel=0.03)
    assert dense[0].item() == pytest.approx(1.6, rel=0.05)
    for rank, top in zip(SCALES.values(), (13.0, 8.9, 6.4, 5.1), strict=True):
        found = [kernel(rank, kaiming, seed=seed) for seed in range(3)]
        energy = sum(each.square().sum() for each in found) / 3
        assert energy.item() == pytest.approx(4 * SIDE, rel=0.05)
        assert (energy / dense.square().sum()).item() == pytest.approx(6, rel=0.05)
        assert (sum(each[0] for each in found) / 3).item() == pytest.approx(top, rel=0.05)


def test_spectral_starts_keep_the_top_values_of_the_dense_draw_and_a_known_share_of_its_energy() -> None:
    dense = dense_kernel()
    for rank, energy, nuclear in zip(SCALES.values(), (0.13, 0.34, 0.74), (0.08, 0.23, 0.58), strict=False):
        found = kernel(rank, rw.Spectral(draw=kaiming))
        # The same draw: the values that are kept are the dense ones, the largest with them.
        torch.testing.assert_close(found[:rank], dense[:rank], rtol=1e-10, atol=0)
        assert (found.square().sum() / dense.square().sum()).item() == pytest.approx(energy, rel=0.05)
        assert (found.sum() / dense.sum()).item() == pytest.approx(nuclear, rel=0.06)


def test_spectral_starts_are_balanced_and_regular_ones_off_by_the_ratio_of_their_sides() -> None:
    torch.manual_seed(0)
    made = {"rank": 21, "bias": False, "dtype": torch.float64}
    spectral, regular = (
        rw.balance(rw.FactorizedConv2d(CHANNELS, CHANNELS, 3, **made, init=init).product.detach())
        for init in (rw.Spectral(draw=kaiming), kaiming)
    )
    assert spectral.relative < 1e-20
    # `U^T U` is near `2 m / r`, and `V^T V` near 2, each times the identity.
    expected = 2 * SIDE / 21 - 2
    assert regular.imbalance.diagonal().mean().item() == pytest.approx(expected, rel=0.05)
    assert regular.relative > 0.3


# ---- kernels ---------------------------------------------------------------------------------------------------------


def separable(outputs: int, inputs: int, size: int) -> Tensor:
    """A kernel of two convolutions in turn with one channel between them: `K[o, i, a, b] = u[o, a] v[i, b]`."""
    down, across = gaussian(outputs, size, seed=1), gaussian(inputs, size, seed=2)
    return torch.einsum("oa,ib->oiab", down, across)


def test_a_separable_kernel_is_seen_as_rank_one() -> None:
    dense = nn.Conv2d(3, 3, 3, padding=1, stride=2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        dense.weight.copy_(separable(3, 3, 3))
    layer = rw.FactorizedConv2d.from_dense(dense, rank=1)
    images = gaussian(2, 3, 8, 8, seed=3)
    torch.testing.assert_close(layer.weight, dense.weight, rtol=0, atol=1e-12)
    torch.testing.assert_close(layer(images), dense(images), rtol=0, atol=1e-12)
    whole = rw.FactorizedConv2d.from_dense(dense, rank=9)
    assert rw.numerical_rank(whole.product.detach().spectrum()) == 1
    assert rw.factorization_plan(nn.Sequential(dense), energy=1 - 1e-9).layers[0].rank == 1
    # A mere reshape, as in the code that was released with the paper, sees full rank, and keeps little at rank one.
    reshaped = rw.Product(dense.weight.detach().reshape(9, 9), torch.eye(9, dtype=torch.float64))
    assert rw.numerical_rank(reshaped.spectrum()) == 9
    kept = reshaped.truncated(rank=1).dense().reshape(3, 3, 3, 3)
    assert (kept - dense.weight).norm() > 0.3 * dense.weight.norm()


def test_decay_of_a_kernel_is_decay_of_its_product() -> None:
    """Reading a kernel as a matrix permutes its entries, so that its Frobenius decay is the dense convolution's own."""
    dense = nn.Conv2d(4, 5, 3, bias=False, dtype=torch.float64)
    for form in ("spatial", "channel"):
        layer = rw.FactorizedConv2d.from_dense(dense, rank=5, form=form)
        penalty = rw.FrobeniusDecay(nn.Sequential(layer), coefficient=1.0).penalty()
        torch.testing.assert_close(penalty, layer.weight.detach().square().sum() / 2, rtol=1e-12, atol=0)


# ---- wide layers -----------------------------------------------------------------------------------------------------


def columns(layer: rw.FactorizedLinear) -> Tensor:
    """The squared norms of the inner directions, both factors together, smallest last, whatever basis hides them."""
    left, right = (factor.detach() for factor in layer.factors)
    return torch.linalg.eigvalsh(left.mT @ left + right @ right.mT).flip(0)


@pytest.mark.parametrize("charge", ["nothing", "factors", "product"])
def test_wide_spectral_layers_learn_in_all_directions_and_zero_columns_in_none(charge: str) -> None:
    target = gaussian(6, 8, seed=4)
    moved = {}
    for fill in (0.1, 0.0):
        torch.manual_seed(0)
        layer = rw.FactorizedLinear(
            8, 6, rank=12, overcomplete=True, bias=False, dtype=torch.float64, init=rw.Spectral(fill=fill)
        )
        start = [factor.detach().clone() for factor in layer.factors]
        decay = 1e-2 if charge != "nothing" else 0.0
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.05, weight_decay=decay)
        if charge == "product":
            rw.FrobeniusDecay(nn.Sequential(layer)).attach(optimizer)
        for step in descend(optimizer, distance(layer, target), 60):
            if step == 1:
                gradients = layer.factors[0].grad.norm(dim=0), layer.factors[1].grad.norm(dim=1)
        moved[fill] = [factor.detach() - old for factor, old in zip(layer.factors, start, strict=True)]
        dead = 6
        if fill:
            assert min(each.min() for each in gradients) > 1e-3
            assert columns(layer)[-1] > 1e-4
        else:
            assert all(bool((each[-dead:] == 0).all()) for each in gradients)
            assert bool((moved[fill][0][:, -dead:] == 0).all())
            assert bool((moved[fill][1][-dead:] == 0).all())
            assert columns(layer)[-1] == 0
    # All directions of the inner space moved, not just as many as the layer has outputs.
    assert torch.linalg.matrix_rank(torch.cat([moved[0.1][0], moved[0.1][1].mT])) == 12
    assert torch.linalg.matrix_rank(torch.cat([moved[0.0][0], moved[0.0][1].mT])) == 6


def test_zero_columns_are_dead_in_deep_layers_too() -> None:
    """Every factor's gradient has the others' zero block as a factor, the inner one's as well."""
    for fill in (0.1, 0.0):
        torch.manual_seed(0)
        made = {"rank": 12, "depth": 1, "overcomplete": True, "bias": False, "dtype": torch.float64}
        layer = rw.FactorizedLinear(8, 6, **made, init=rw.Spectral(fill=fill))
        distance(layer, gaussian(6, 8, seed=4))().backward()
        left, inner, right = (factor.grad for factor in layer.factors)
        reached = [left.norm(dim=0), inner.norm(dim=0), inner.norm(dim=1), right.norm(dim=1)]
        assert all(bool((each[:6] > 1e-3).all()) for each in reached)
        assert all(bool((each[6:] > 1e-3).all() if fill else (each[6:] == 0).all()) for each in reached)


def test_wide_layers_start_as_the_dense_layer_and_end_with_its_decay() -> None:
    """Overcomplete layers under Frobenius decay reach the dense layer's own optimum, folded to one matrix."""
    dense = nn.Linear(8, 6, bias=False, dtype=torch.float64)
    target = gaussian(6, 8, seed=5)
    for rank, depth in ((12, 0), (6, 1), (12, 1)):
        layer = rw.FactorizedLinear.from_dense(dense, rank=rank, depth=depth, overcomplete=rank > 6)
        torch.testing.assert_close(layer.weight, dense.weight, rtol=0, atol=1e-12)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.02, momentum=0.9, weight_decay=0.5)
        rw.FrobeniusDecay(nn.Sequential(layer)).attach(optimizer)
        run(optimizer, distance(layer, target), 300)
        torch.testing.assert_close(layer.fold().weight, target / 1.5, rtol=0, atol=1e-3)


# ---- embeddings ------------------------------------------------------------------------------------------------------


def test_sparse_embeddings_decay_as_a_step_of_its_own_and_refuse_a_part_in_their_gradients() -> None:
    """Every row shares the right factor, so that decay reaches rows that were not looked up too; the padding stays."""
    torch.manual_seed(0)
    layer = rw.FactorizedEmbedding(20, 6, rank=3, padding_idx=0, sparse=True, dtype=torch.float64)
    left, right = (factor.detach().clone() for factor in layer.factors)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    decay = rw.FrobeniusDecay(layer, coefficient=0.5).attach(optimizer)
    layer(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(UserError, match=r"has sparse gradients.*decoupled=True.*sparse=False"):
        optimizer.step()
    decay.detach()
    rw.FrobeniusDecay(layer, coefficient=0.5, decoupled=True).attach(optimizer)
    optimizer.step()
    moved = layer.factors[0].detach()
    torch.testing.assert_close(moved[3:], (left - 0.05 * left @ right @ right.mT)[3:])
    assert not moved[0].any()
    assert (moved[1:3] - left[1:3]).abs().min() > 0
