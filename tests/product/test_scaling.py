"""Rescaling by powers of two is exact, at both ends of the range."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from rankwise.product.product import Product
from rankwise.product.scaling import equilibration, exponent_of, normalized, power_of_two, scaled
from tests.product.draws import gaussian

lengths = st.lists(st.floats(1e-200, 1e200) | st.just(0.0), min_size=1, max_size=6)


@given(st.integers(-1022, 1023))
def test_powers_are_exact(exponent):
    assert float(power_of_two(torch.tensor(exponent))) == math.ldexp(1.0, exponent)


@given(st.floats(1e-300, 1e300))
def test_exponents_bracket_their_value(value):
    exponent = int(exponent_of(torch.tensor(value, dtype=torch.float64)))
    assert math.ldexp(0.5, exponent) <= value < math.ldexp(1.0, exponent)


@given(lengths, st.integers(0, 2**31))
def test_equilibrated_lengths_agree_up_to_a_factor_of_four(left, seed):
    one = torch.tensor(left, dtype=torch.float64)
    two = torch.rand(len(left), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    scale, inverse = equilibration(one, two)
    alive = one != 0
    assert bool(((scale * inverse)[alive] == 1).all())
    ratio = (one * scale)[alive] / (two * inverse)[alive]
    assert bool(((ratio >= 0.25) & (ratio <= 4)).all())
    assert not scale[~alive].any()
    assert not inverse[~alive].any()


def test_a_length_that_is_not_finite_is_no_zero():
    scale, _ = equilibration(torch.tensor([math.nan, math.inf]).double(), torch.ones(2).double())
    assert scale.tolist() == [1.0, 1.0]


def test_ordinary_products_are_returned_as_they_are():
    product = gaussian([4, 2, 4], 0)
    assert normalized(product) == (product, None)


def test_extreme_factors_come_back_exactly():
    product = gaussian([4, 2, 4], 0, batch=(2,))
    far = Product(product.left * torch.tensor([2.0**900, 2.0**-700], dtype=torch.float64)[:, None, None], product.right)
    ordinary, exponent = normalized(far)
    assert exponent is not None
    assert float(ordinary.left.abs().amax()) <= 1
    rebuilt = scaled(ordinary.dense().flatten(1), exponent)
    torch.testing.assert_close(rebuilt, far.dense().flatten(1), rtol=1e-15, atol=0)
