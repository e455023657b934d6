"""The paper's rules for modes and ranks, and the numbers of parameters that follow from them."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rankwise.errors import UserError
from rankwise.layers.tensor_ranks import checked_ranks, core_shapes, kernel_ranks, matrix_ranks, near_equal_modes
from rankwise.layers.tensorized_separable import TensorizedSeparableConv2d

FORMS = ("cp", "tucker", "tensor-train")


@given(count=st.integers(1, 5000), order=st.integers(2, 4))
def test_modes_multiply_to_the_number_and_each_is_the_least_that_the_rule_allows(count: int, order: int) -> None:
    modes = near_equal_modes(count, order)
    assert len(modes) == order
    assert prod(modes) == count
    left = count
    for place, mode in enumerate(modes[:-1]):
        power = order - place
        assert mode**power >= left
        assert not any(left % size == 0 and size**power >= left for size in range(1, mode))
        left //= mode


@pytest.mark.parametrize(
    ("channels", "modes"),
    [
        ((160, 160), (32, 32, 25)),
        ((320, 320), (50, 64, 32)),
        ((640, 640), (80, 80, 64)),
        ((16, 160), (16, 16, 10)),
        ((10, 100), (10, 10, 10)),
    ],
)
def test_the_paper_s_modes(channels: tuple[int, int], modes: tuple[int, ...]) -> None:
    assert near_equal_modes(prod(channels)) == modes


@given(
    modes=st.lists(st.integers(1, 12), min_size=2, max_size=4),
    scale=st.floats(0.01, 1.0),
    form=st.sampled_from(FORMS),
)
def test_ranks_of_the_rules_are_ranks_that_can_be_had(modes: list[int], scale: float, form) -> None:
    for rule in (matrix_ranks, kernel_ranks):
        ranks = rule(form, modes, scale)
        assert checked_ranks(form, modes, ranks) == ranks


class WideResNet(nn.Module):
    """The modules of WRN-28-10 that have parameters, with a convolution of choice inside the blocks."""

    def __init__(self, convolution) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, bias=False, device="meta")
        layers: list[nn.Module] = []
        channels = 16
        for width in (160, 320, 640):
            layers.append(nn.Conv2d(channels, width, 1, bias=False, device="meta"))
            for _ in range(4):
                layers += [nn.BatchNorm2d(channels, device="meta"), convolution(channels, width)]
                layers += [nn.BatchNorm2d(width, device="meta"), convolution(width, width)]
                channels = width
        self.layers = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(640, device="meta")
        self.classifier = nn.Linear(640, 10, device="meta")

    @property
    def count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def tensorized(form, scale: float) -> WideResNet:
    def convolution(inputs: int, outputs: int) -> nn.Module:
        return TensorizedSeparableConv2d(
            inputs, outputs, 3, form=form, scale=scale, padding=1, bias=False, device="meta"
        )

    return WideResNet(convolution)


def test_the_dense_network_has_the_paper_s_count() -> None:
    dense = WideResNet(lambda inputs, outputs: nn.Conv2d(inputs, outputs, 3, bias=False, device="meta"))
    assert dense.count == 36_479_194


@pytest.mark.parametrize(("scale", "count"), [(0.234, 607_160), (0.705, 2_434_702)])
def test_the_paper_s_counts_of_tensor_trains(scale: float, count: int) -> None:
    assert tensorized("tensor-train", scale).count == count


@pytest.mark.parametrize(("scale", "plain", "counted"), [(0.211, 442_918, 608_501), (0.68, 1_767_376, 2_444_223)])
def test_the_paper_s_counts_of_tucker(scale: float, plain: int, counted: int) -> None:
    """Its library keeps a Tucker core as a tensor train of its own, with a first bond of `min(size_1, r_2 r_3)`: wider
    than the core's own rank can fill. The same ranks with the core stored plainly take fewer numbers.
    """
    network = tensorized("tucker", scale)
    assert network.count == plain
    excess = 0
    for layer in network.modules():
        if isinstance(layer, TensorizedSeparableConv2d):
            one, two, three = layer.ranks
            first = min(layer.modes[0], two * three)
            second = min(three, first * two)
            excess += one * first + first * two * second + second * three - one * two * three
    assert plain + excess == counted


def test_shapes_of_cores() -> None:
    assert core_shapes("cp", (4, 5, 6), (2,)) == [(4, 2), (5, 2), (6, 2)]
    assert core_shapes("tucker", (4, 5, 6), (2, 3, 1)) == [(2, 3, 1), (4, 2), (5, 3), (6, 1)]
    assert core_shapes("tensor-train", (4, 5, 6), (2, 3)) == [(1, 4, 2), (2, 5, 3), (3, 6, 1)]


def test_one_rank_for_all() -> None:
    assert checked_ranks("tucker", (4, 5, 6), 2) == (2, 2, 2)
    assert checked_ranks("tensor-train", (4, 5, 6), 3) == (3, 3)
    assert checked_ranks("cp", (4, 5, 6), 7) == (7,)


@pytest.mark.parametrize(
    ("form", "ranks", "text"),
    [
        ("cp", 21, "rank 21 at position 0 of a cp form of modes 4x5x6 is above 20"),
        ("tucker", (5, 2, 2), "rank 5 at position 0 of a tucker form of modes 4x5x6 is above 4"),
        ("tucker", (4, 1, 2), "rank 4 at position 0 of a tucker form of modes 4x5x6 is above 2"),
        ("tensor-train", (2, 7), "rank 7 at position 1 of a tensor-train form of modes 4x5x6 is above 6"),
        ("tensor-train", (1, 6), "rank 6 at position 1 of a tensor-train form of modes 4x5x6 is above 5"),
        ("tensor-train", (2, 2, 2), "takes 2 ranks of at least 1"),
        ("tucker", 0, "takes 3 ranks of at least 1"),
        ("cp", (2.5,), "takes 1 rank of at least 1"),
    ],
)
def test_ranks_that_cannot_be_had_are_refused(form, ranks, text: str) -> None:
    with pytest.raises(UserError, match=text):
        checked_ranks(form, (4, 5, 6), ranks)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1.5, float("nan")])
def test_a_scale_is_a_share(scale: float) -> None:
    for rule in (matrix_ranks, kernel_ranks):
        with pytest.raises(UserError, match="above 0 and at most 1"):
            rule("cp", (4, 5, 6), scale)
