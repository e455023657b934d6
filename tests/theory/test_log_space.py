"""The change of variables: its inverse, its conservation law, its ends, and starts that have none."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankwise.errors import UserError
from rankwise.theory.log_space import LogSpace

EXPONENTS = st.floats(-1000.0, -0.1)


def drawn(seed: int, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    u, v = torch.randn(2, size, generator=generator, dtype=torch.float64)
    return u, v


@given(st.integers(0, 999), st.floats(-300.0, -0.01))
def test_the_start_is_the_start(seed: int, log_alpha: float) -> None:
    u, v = drawn(seed)
    space = LogSpace.of(log_alpha, u, v)
    alpha = math.exp(log_alpha)
    for own, given_ in zip(space.weights(space.start), (u, v), strict=True):
        torch.testing.assert_close(own, alpha * given_, rtol=1e-9, atol=1e-14 * alpha)
    torch.testing.assert_close(space.products(space.start), alpha**2 * u * v, rtol=1e-9, atol=1e-14 * alpha**2)
    scale = torch.maximum((u + v).abs(), (u - v).abs())
    scale = torch.where((u * v) > 0, scale, torch.minimum((u + v).abs(), (u - v).abs()))
    torch.testing.assert_close(
        space.log_scale(space.start), 1 + scale.log() / log_alpha, rtol=0, atol=1e-9 / -log_alpha
    )


@given(st.integers(0, 999), EXPONENTS, st.floats(-1.0, 1.0))
def test_products_weights_and_coordinates_agree_anywhere_on_the_way(seed: int, log_alpha: float, share: float) -> None:
    space = LogSpace.of(log_alpha, *drawn(seed))
    # From one wall to the other, eta = y / log(1/alpha) goes from -1 to 1.
    y = share * space.span + space.start
    products = space.products(y)
    u, v = space.weights(y)
    torch.testing.assert_close(u * v, products, rtol=1e-10, atol=1e-300)
    seen = products.abs() > 1e-290
    torch.testing.assert_close(space.coordinates(products)[seen], y[seen], rtol=1e-9, atol=1e-6)
    assert bool((space.slopes(y) >= 2 * products.abs()).all())
    step = 1e-6
    slope = (space.products(y + step) - space.products(y - step)) / (2 * step)
    torch.testing.assert_close(space.slopes(y)[seen], slope[seen], rtol=1e-5, atol=0)


@given(st.integers(0, 999), st.floats(-3.0, -0.01), st.floats(-1.0, 1.0))
def test_the_difference_of_squares_is_conserved(seed: int, log_alpha: float, share: float) -> None:
    u, v = drawn(seed)
    space = LogSpace.of(log_alpha, u, v)
    later = space.weights(share * space.span + space.start)
    expected = math.exp(2 * log_alpha) * (u.square() - v.square())
    scale = later[0].square() + later[1].square()
    assert ((later[0].square() - later[1].square() - expected).abs() <= 1e-13 * scale).all()


def test_the_walls_are_where_products_are_of_order_one() -> None:
    space = LogSpace.of(-1e4, torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.5]))
    y = space.coordinates(torch.tensor([3.0, -3.0], dtype=torch.float64))
    torch.testing.assert_close(space.log_scale(y), torch.tensor([0.0, 2.0]).double(), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("log_alpha", "u", "v", "text"),
    [
        (0.0, [1.0], [0.0], "alpha >= 1"),
        (3.0, [1.0], [0.0], "alpha >= 1"),
        (math.nan, [1.0], [0.0], "alpha >= 1"),
        (-math.inf, [1.0], [0.0], "alpha >= 1"),
        (-5.0, [1.0, 2.0], [0.0, -2.0], r"\|u\| = \|v\| = 2 for coordinate 1 \(1 in all\)"),
        (-5.0, [1.0, 2.0], [0.0], "two vectors of equal length"),
        (-5.0, [1.0, math.nan], [0.0, 1.0], "NaN or infinity"),
    ],
)
def test_starts_that_do_not_qualify_are_refused(log_alpha: float, u: list[float], v: list[float], text: str) -> None:
    with pytest.raises(UserError, match=text):
        LogSpace.of(log_alpha, torch.tensor(u), torch.tensor(v))
