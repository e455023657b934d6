"""Two convolutions, one convolution and the dense layer with the same kernel agree, whatever the window does."""

from __future__ import annotations

import warnings
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import rankwise as rw
from rankwise.errors import UserError
from rankwise.layers.conv2d import FactorizedConv2d
from rankwise.layers.kernel_matrix import kernel_to_matrix, matrix_shape
from tests.layers.draws import generator

WAYS = ("two-step", "one-step", "auto")


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(1), dtype=torch.float64)


def agree(made: FactorizedConv2d, expected: torch.Tensor, given: torch.Tensor) -> None:
    for execution in WAYS:
        made.execution = execution
        torch.testing.assert_close(made(given), expected)
    torch.testing.assert_close(made.fold()(given), expected)


@pytest.mark.parametrize("form", ["spatial", "channel"])
@given(
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    mode=st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
    depth=st.integers(0, 1),
    bias=st.booleans(),
    batch=st.sampled_from([(), (1,), (2,)]),
)
@settings(max_examples=40)
def test_every_window(form, kernel, stride, padding, dilation, mode, depth, bias, batch):
    dense = nn.Conv2d(
        3, 4, kernel, stride=stride, padding=padding, dilation=dilation, padding_mode=mode, bias=bias
    ).double()
    given = images(*batch, 3, 9, 8)
    exact = min(matrix_shape(tuple(dense.weight.shape), form))
    agree(FactorizedConv2d.from_dense(dense, rank=exact, depth=depth, form=form), dense(given), given)


@pytest.mark.parametrize("form", ["spatial", "channel"])
@pytest.mark.parametrize(("padding", "kernel"), list(product(["same", "valid"], [1, 2, 3, (4, 3), (1, 2)])))
def test_padding_by_name_and_windows_of_even_size(form, padding, kernel):
    dense = nn.Conv2d(3, 4, kernel, padding=padding, dilation=(1, 2)).double()
    given = images(2, 3, 9, 8)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using padding='same' with even kernel")
        expected = dense(given)
    exact = min(matrix_shape(tuple(dense.weight.shape), form))
    made = FactorizedConv2d.from_dense(dense, rank=exact, form=form)
    for execution in WAYS:
        made.execution = execution
        torch.testing.assert_close(made(given), expected)


@pytest.mark.parametrize("form", ["spatial", "channel"])
def test_a_low_rank_kernel_is_computed_alike_in_every_way(form):
    torch.manual_seed(0)
    made = FactorizedConv2d(5, 6, 3, rank=4, depth=1, form=form, stride=2, padding=1, dtype=torch.float64)
    given = images(2, 5, 9, 9)
    agree(made, nn.functional.conv2d(given, made.weight, made.bias, 2, 1), given)
    gradients = []
    for execution in ("two-step", "one-step"):
        made.execution = execution
        made.zero_grad()
        made(given).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in made.parameters()])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("form", ["spatial", "channel"])
def test_a_structured_kernel_is_truncated_as_its_own_matrix(form):
    """Oriented edges: a start that flattens in another order than the forward pass would scramble them."""
    position = torch.linspace(-1, 1, 5, dtype=torch.float64)
    angles = torch.linspace(0, 3, 12, dtype=torch.float64).reshape(4, 3)
    waves = position[:, None] * angles.cos()[..., None, None] + position * angles.sin()[..., None, None]
    dense = nn.Conv2d(3, 4, 5, padding=2, bias=False).double()
    dense.weight.data = (3 * waves).sin() * (-position[:, None].square() - position.square()).exp()
    values = torch.linalg.svdvals(kernel_to_matrix(dense.weight.detach(), form))
    for rank in (1, 2, 4):
        made = FactorizedConv2d.from_dense(dense, rank=rank, form=form)
        missed = torch.linalg.vector_norm(made.weight - dense.weight)
        torch.testing.assert_close(missed, values[rank:].square().sum().sqrt())
    if form == "spatial":
        # The directions share what a mere reshape of the kernel would tear apart.
        scrambled = torch.linalg.svdvals(dense.weight.detach().reshape(20, 15))
        assert values[2:].square().sum() < 0.5 * scrambled[2:].square().sum()


def test_a_trained_kernel_is_truncated_as_its_own_matrix(shared_data):
    path = shared_data / "resnet-cifar10/resnet20-12fca82f.th"
    stored = torch.load(path, weights_only=True, map_location="cpu")["state_dict"]
    kernels = [value.double() for value in stored.values() if value.ndim == 4 and value.shape[1] > 3]
    assert len(kernels) == 18
    for kernel in kernels:
        outputs, inputs, *_ = kernel.shape
        rank = outputs // 3
        dense = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False).double()
        dense.weight.data = kernel
        made = FactorizedConv2d.from_dense(dense, rank=rank)
        values = torch.linalg.svdvals(kernel_to_matrix(kernel, "spatial")).square()
        missed = (made.weight - kernel).square().sum()
        torch.testing.assert_close(missed, values[rank:].sum())
        given = images(1, inputs, 8, 8)
        torch.testing.assert_close(made(given), nn.functional.conv2d(given, made.weight, padding=1))
        # Trained kernels have structure, and it shows where the two directions are kept apart.
        scrambled = torch.linalg.svdvals(kernel.reshape(outputs * 3, inputs * 3)).square()
        assert missed < scrambled[rank:].sum()


def test_a_new_layer_starts_like_a_new_dense_layer():
    torch.manual_seed(3)
    dense = nn.Conv2d(6, 8, 3)
    torch.manual_seed(3)
    made = FactorizedConv2d(6, 8, 3, rank=18)
    torch.testing.assert_close(made.weight, dense.weight, atol=1e-6, rtol=1e-5)
    drawn = FactorizedConv2d(6, 8, 3, rank=18, init=rw.Spectral(draw=nn.init.kaiming_normal_))
    assert drawn.weight.std().item() == pytest.approx((2 / 54) ** 0.5, rel=0.15)


def test_the_dense_layer_comes_back():
    dense = nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), padding_mode="reflect").eval()
    folded = FactorizedConv2d.from_dense(dense, rank=6).fold()
    assert repr(folded) == repr(dense)
    assert not folded.training
    torch.testing.assert_close(folded.weight, dense.weight, atol=1e-6, rtol=1e-5)
    assert torch.equal(folded.bias, dense.bias)


def test_it_is_one_site_that_multiplies_to_its_matrix():
    made = nn.ModuleDict({"stem": FactorizedConv2d(3, 4, 3, rank=2, depth=1)})
    assert list(made.state_dict()) == [
        "stem.bias",
        "stem.kernel_factors.0",
        "stem.kernel_factors.1",
        "stem.kernel_factors.2",
    ]
    (site,) = rw.find(made)
    assert (site.name, site.kind, site.shape) == ("stem.conv", "conv", (12, 9))
    matrix = kernel_to_matrix(made["stem"].weight, "spatial")
    torch.testing.assert_close(site.product(made).dense(), matrix)
    torch.testing.assert_close(rw.find(made.state_dict())["stem.conv"].product(made.state_dict()).dense(), matrix)


@pytest.mark.parametrize("execution", WAYS)
@pytest.mark.parametrize("form", ["spatial", "channel"])
def test_images_stored_with_their_channels_last(form, execution):
    made = FactorizedConv2d(3, 4, 3, rank=2, form=form, padding=1, stride=2, execution=execution).double()
    given = images(2, 3, 8, 8)
    torch.testing.assert_close(made(given.to(memory_format=torch.channels_last)), made(given))


def test_the_cheaper_way_is_taken():
    given = torch.empty(8, 64, 16, 16)
    low, exact = (FactorizedConv2d(64, 64, 3, rank=rank, padding=1, device="meta") for rank in (20, 192))
    assert low.execution_at(given) == "two-step"
    assert exact.execution_at(given) == "one-step"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank must be at least 1, got 0"),
        ({"rank": 13}, "rank 13 is above 12, the largest rank of a 18x12 matrix"),
        ({"rank": 2, "groups": 2}, "a convolution with groups=2 is 2 products, one for each group"),
        ({"rank": 2, "form": "cp"}, "form must be 'spatial' or 'channel', got 'cp'"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings, message):
    with pytest.raises(UserError, match=message):
        FactorizedConv2d(4, 6, 3, **settings)


def test_a_grouped_convolution_is_refused():
    with pytest.raises(UserError, match="groups=3"):
        FactorizedConv2d.from_dense(nn.Conv2d(6, 6, 3, groups=3), rank=1)
