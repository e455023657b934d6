"""Tensorized layers: what their cores stand for, where they start, how they run, and what is done about their decay."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rankwise as rw
from rankwise.errors import UserError
from rankwise.layers.decompositions import decomposed
from rankwise.layers.kernel_matrix import kernel_to_matrix
from rankwise.layers.rebalance import balance_
from rankwise.layers.rebalanced import LeftAlone, Moved
from rankwise.layers.tensorized import TensorizedLayer
from rankwise.layers.tensorized_conv2d import TensorizedConv2d
from rankwise.layers.tensorized_linear import TensorizedLinear
from rankwise.layers.tensorized_separable import TensorizedSeparableConv2d
from rankwise.product.balance import balance
from tests.layers.draws import matrix

FORMS = ("cp", "tucker", "tensor-train")
GEOMETRIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "padded": {"padding": 1},
    "strided": {"padding": (1, 0), "stride": (2, 3)},
    "dilated": {"padding": 2, "dilation": (2, 1)},
    "uneven": {"padding": "same", "kernel_size": (2, 3)},
    "around": {"padding": 1, "padding_mode": "circular", "stride": 2},
    "point": {"kernel_size": 1},
}


def linear(form, **settings: Any) -> TensorizedLinear:
    torch.manual_seed(0)
    settings = settings if "ranks" in settings else {"scale": 0.5, **settings}
    return TensorizedLinear(15, 12, form=form, **settings, dtype=torch.float64)


def conv(form, kind: type = TensorizedConv2d, **settings: Any):
    torch.manual_seed(0)
    settings = {"kernel_size": 3, "scale": 0.5, **settings}
    return kind(4, 6, form=form, **settings, dtype=torch.float64)


def made(form, init: Any = nn.init.normal_) -> list[TensorizedLayer]:
    """A layer of each class; cores that are drawn will do wherever a test is not of the start."""
    kinds = (TensorizedConv2d, TensorizedSeparableConv2d)
    return [linear(form, init=init), *(conv(form, kind, padding=1, init=init) for kind in kinds)]


def stream(layer: nn.Module) -> Tensor:
    shape = (5, 15) if isinstance(layer, TensorizedLinear) else (2, 4, 7, 8)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


# ---- what is computed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_linear_layer_is_its_tensor_read_in_order(form) -> None:
    layer = linear(form)
    assert layer.modes == (6, 6, 5)
    weight = layer.tensor.dense().reshape(12, 15)
    torch.testing.assert_close(layer.weight, weight)
    torch.testing.assert_close(layer(stream(layer)), F.linear(stream(layer), weight, layer.bias))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("form", FORMS)
def test_small_convolutions_in_turn_are_the_one_with_their_kernel(form, geometry: str) -> None:
    layer = conv(form, **GEOMETRIES[geometry], init=nn.init.normal_)
    images = stream(layer)
    layer.execution = "two-step"
    in_turn = layer(images)
    layer.execution = "one-step"
    torch.testing.assert_close(layer(images), in_turn)
    dense = layer.fold()
    torch.testing.assert_close(dense(images), in_turn)
    assert dense.weight.shape == layer.weight.shape
    outputs = dense(images)[0, 0].numel() * len(images)
    assert (
        layer.geometry.positions(layer.geometry.padded(images) if layer.geometry.around is None else images) == outputs
    )


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("form", FORMS)
def test_the_separable_layer_is_the_convolution_that_it_folds_to(form, geometry: str) -> None:
    layer = conv(form, TensorizedSeparableConv2d, **GEOMETRIES[geometry], init=nn.init.normal_)
    images = stream(layer)
    torch.testing.assert_close(layer.fold()(images), layer(images))
    kernel = layer.pointwise[:, :, None, None] * layer.depthwise[:, 0][None]
    torch.testing.assert_close(layer.weight, kernel)


@pytest.mark.parametrize("form", FORMS)
def test_the_middle_unfolding_is_the_layer_s_product(form) -> None:
    """Of a kernel it is the spatial matrix of a factorized convolution, its columns in another order."""
    layer = conv(form, init=nn.init.normal_)
    assert layer.product.shape == (18, 12)
    spatial = kernel_to_matrix(layer.weight, "spatial").unflatten(1, (4, 3)).transpose(1, 2).flatten(1)
    torch.testing.assert_close(layer.product.dense(), spatial)
    values = torch.linalg.svdvals(kernel_to_matrix(layer.weight.detach(), "spatial"))
    found = layer.product.detach().spectrum().values
    torch.testing.assert_close(found, values[: len(found)], rtol=1e-6, atol=1e-8)
    assert linear(form, init=nn.init.normal_).product.shape == (6, 30)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_reach_every_core_as_through_the_dense_weight(form) -> None:
    for layer in made(form):
        twin = copy.deepcopy(layer)
        layer(stream(layer)).square().sum().backward()
        dense = twin.fold()
        weight = twin.weight
        dense.weight = None
        output = torch.func.functional_call(dense, {"weight": weight}, stream(layer))
        output.square().sum().backward()
        for one, two in zip(layer.cores, twin.cores, strict=True):
            torch.testing.assert_close(one.grad, two.grad)
            assert one.grad.abs().sum() > 0


# ---- where it starts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_every_core_shares_the_scale(form) -> None:
    for layer in made(form, "spectral"):
        for junction in layer.tensor.junctions():
            assert balance(junction).relative_imbalance.max().item() < 1e-8


def test_a_tensor_train_starts_within_its_bound_of_the_best() -> None:
    """TT-SVD: the error squared is at most the sum over the cuts of what the singular values leave there."""
    weight = matrix(12, 15)
    form = decomposed(weight.reshape(6, 6, 5), "tensor-train", (3, 2))
    error = (form.dense().reshape(12, 15) - weight).square().sum().item()
    left = [
        torch.linalg.svdvals(weight.reshape(cut, -1))[rank:].square().sum().item() for cut, rank in ((6, 3), (36, 2))
    ]
    assert max(left) <= error <= sum(left)


def test_tucker_starts_no_worse_than_its_bound() -> None:
    weight = matrix(12, 15).reshape(6, 6, 5)
    form = decomposed(weight, "tucker", (3, 4, 2))
    error = (form.dense() - weight).square().sum().item()
    left = [
        torch.linalg.svdvals(weight.movedim(mode, 0).flatten(1))[rank:].square().sum().item()
        for mode, rank in enumerate((3, 4, 2))
    ]
    assert max(left) <= error <= sum(left)


@pytest.mark.parametrize(("form", "ranks"), [("cp", (3,)), ("tucker", (2, 3, 2)), ("tensor-train", (3, 2))])
def test_a_tensor_of_the_form_is_found_again(form, ranks: tuple[int, ...]) -> None:
    torch.manual_seed(2)
    made = TensorizedLinear(15, 12, form=form, ranks=ranks, init=nn.init.normal_, dtype=torch.float64)
    again = TensorizedLinear.from_dense(made.fold(), form=form, ranks=ranks)
    torch.testing.assert_close(again.weight, made.weight, rtol=0, atol=1e-3 * made.weight.abs().max().item())
    torch.testing.assert_close(again.bias, made.bias)


def test_the_same_weight_gives_the_same_cores_and_touches_no_random_numbers() -> None:
    weight = matrix(12, 15).reshape(6, 6, 5)
    torch.manual_seed(0)
    one = decomposed(weight, "cp", (9,))
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    two = decomposed(weight, "cp", (9,))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.cores, two.cores, strict=True))


def test_the_default_draw_is_the_dense_layer_s_own_and_others_can_be_given() -> None:
    torch.manual_seed(4)
    layer = TensorizedLinear(15, 12, ranks=(6, 5), dtype=torch.float64)
    torch.manual_seed(4)
    dense = nn.Linear(15, 12, dtype=torch.float64)
    torch.testing.assert_close(layer.weight, dense.weight)
    torch.testing.assert_close(layer.bias, dense.bias)
    drawn = TensorizedLinear(15, 12, ranks=(6, 5), init=rw.Spectral(draw=nn.init.ones_), dtype=torch.float64)
    torch.testing.assert_close(drawn.weight, torch.ones(12, 15, dtype=torch.float64))
    filled = TensorizedLinear(15, 12, ranks=(6, 5), init=nn.init.ones_)
    assert all((core == 1).all() for core in filled.cores)


def test_a_separable_kernel_is_found_again_and_another_at_its_best_per_channel() -> None:
    torch.manual_seed(0)
    dense = nn.Conv2d(4, 6, 3, dtype=torch.float64)
    layer = TensorizedSeparableConv2d.from_dense(dense, scale=1.0)
    for channel in range(4):
        values = torch.linalg.svdvals(dense.weight[:, channel].flatten(1))
        error = (layer.weight[:, channel] - dense.weight[:, channel]).norm()
        torch.testing.assert_close(error, values[1:].norm())
    again = TensorizedSeparableConv2d.from_dense(layer.fold(), scale=1.0)
    torch.testing.assert_close(again.weight, layer.weight)


@pytest.mark.parametrize("form", ["tucker", "tensor-train"])
def test_a_dense_convolution_at_full_rank_is_kept(form) -> None:
    dense = nn.Conv2d(4, 6, 3, padding=1, stride=2, dtype=torch.float64)
    layer = TensorizedConv2d.from_dense(dense, form=form, scale=1.0)
    torch.testing.assert_close(layer(stream(layer)), dense(stream(layer)))


# ---- decay and sites -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_the_penalty_is_that_of_the_dense_weight(form) -> None:
    for layer in made(form):
        twin = copy.deepcopy(layer)
        penalty = layer.frobenius_penalty()
        weight = twin.pointwise if isinstance(twin, TensorizedSeparableConv2d) else twin.weight
        expected = weight.square().sum() / 2
        torch.testing.assert_close(penalty, expected, rtol=1e-10, atol=0)
        penalty.backward()
        expected.backward()
        for one, two in zip(layer.cores, twin.cores, strict=True):
            torch.testing.assert_close(one.grad, two.grad, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_find_says_that_cores_are_no_products(form) -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList(made(form))})
    sites = rw.find(model)
    cores = {name for name, parameter in model.named_parameters() if "_cores." in name and parameter.squeeze().ndim > 1}
    assert cores <= {each.parameter for each in sites.unread}
    assert not cores & sites.covered
    assert rw.find(model.state_dict()).names == sites.names


@pytest.mark.parametrize("form", FORMS)
def test_rebalancing_shares_the_scale_again_and_resets_the_optimizer(form) -> None:
    for layer in made(form):
        weight = layer.weight.detach().clone()
        optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
        layer(stream(layer)).sum().backward()
        told = balance_(nn.Sequential(layer), optimizer=optimizer)["0.tensor"]
        assert isinstance(told, LeftAlone)
        assert "zero_grad" in told.reason
        with torch.no_grad():
            optimizer.state[layer.cores[0]]["exp_avg"] = torch.zeros_like(layer.cores[0])
            layer.cores[0] *= 50
            layer.cores[-1] /= 50
        optimizer.zero_grad()
        record = balance_(nn.Sequential(layer), optimizer=optimizer)
        told = record["0.tensor"]
        assert isinstance(told, Moved)
        assert told.before.relative > 0.5
        assert told.after.relative < 1e-12
        assert told.state == "reset"
        assert not record.unread
        assert layer.cores[0] not in optimizer.state
        torch.testing.assert_close(layer.weight, weight)


def test_tied_cores_are_left_alone() -> None:
    one, two = linear("cp"), linear("cp")
    two.cp_cores[1] = one.cp_cores[1]
    record = balance_(nn.ModuleList([one, two]))
    assert len(record.left_alone) == 2
    assert "'0.cp_cores.1' is '1.cp_cores.1' as well" in record["0.tensor"].reason


# ---- in use ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_state_dict_says_the_form(form) -> None:
    for layer in made(form):
        assert {f"{form.replace('-', '_')}_cores.0", "bias"} <= layer.state_dict().keys()


def test_it_can_be_made_without_values() -> None:
    with torch.device("meta"):
        layers = [TensorizedLinear(15, 12, scale=0.5), TensorizedSeparableConv2d(4, 6, 3, scale=0.5)]
    assert all(parameter.is_meta for layer in layers for parameter in layer.parameters())


def test_a_few_steps_of_training_fit_a_weight() -> None:
    torch.manual_seed(0)
    target = linear("tensor-train", ranks=(2, 2), init=nn.init.normal_).weight.detach()
    layer = TensorizedLinear(15, 12, ranks=(2, 2), bias=False, dtype=torch.float64)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(300):
        optimizer.zero_grad()
        loss = (layer.weight - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 1e-2 * losses[0]


@pytest.mark.parametrize("form", FORMS)
def test_the_cheaper_way_is_taken(form) -> None:
    """Few ranks on many pixels: in turn. All ranks on one pixel: the kernel first, or it would be larger than dense."""
    few = TensorizedConv2d(64, 64, 3, form=form, scale=0.05, padding=1, device="meta")
    assert few.execution_at(torch.empty(8, 64, 32, 32, device="meta")) == "two-step"
    all_ = TensorizedConv2d(64, 64, 3, form=form, scale=1.0, padding=1, device="meta")
    assert all_.execution_at(torch.empty(64, 64, 32, 32, device="meta")) == "one-step"


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TensorizedLinear(15, 12), "needs one of ranks= and scale="),
        (lambda: TensorizedLinear(15, 12, ranks=2, scale=0.5), "needs one of ranks= and scale="),
        (lambda: TensorizedLinear(15, 12, scale=0.5, form="train"), "form must be one of cp, tucker, tensor-train"),
        (lambda: TensorizedLinear(15, 12, scale=0.5, modes=(4, 5)), "whose product is 180 = 12x15"),
        (lambda: TensorizedLinear(15, 12, scale=0.5, init="ones"), "of Spectral.* only draw= has a meaning"),
        (lambda: TensorizedConv2d(4, 6, 3, scale=0.5, groups=2), "groups=2 is 2 kernels"),
        (lambda: TensorizedConv2d(4, 6, 3, scale=0.5, execution="fast"), "execution must be one of"),
        (lambda: decomposed(torch.full((2, 3), torch.nan), "cp", (1,)), "NaN or Inf"),
    ],
)
def test_what_cannot_be_made_is_refused(make, text: str) -> None:
    with pytest.raises(UserError, match=text):
        make()


def test_without_tensorly_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tensorly", None)
    with pytest.raises(rw.errors.MissingExtra, match=r"comes with the extra 'tensor'"):
        TensorizedLinear(15, 12, scale=0.5)
    filled = TensorizedLinear(15, 12, scale=0.5, init=nn.init.normal_)
    assert [one.shape[-1] == two.shape[0] for one, two in pairwise(filled.cores)] == [True, True]
