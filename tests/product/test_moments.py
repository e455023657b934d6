"""Energies from Grams, within their error or not at all."""

from __future__ import annotations

import mpmath
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.product.moments import second_moment
from rankwise.product.product import Product
from tests.product.draws import gaussian


@settings(max_examples=50)
@given(widths=st.lists(st.integers(1, 6), min_size=2, max_size=5), gauge=st.integers(0, 12), seed=st.integers(0, 2**31))
def test_the_energy_is_right_to_its_error_bound_or_left_to_the_spectrum(
    widths: list[int], gauge: int, seed: int
) -> None:
    p = gaussian(widths, seed)
    if p.depth > 1:
        scale = torch.logspace(0, gauge, widths[1], dtype=torch.float64)
        p = Product(p.left * scale, p.factors[1] / scale[:, None], *p.factors[2:])
    energy = second_moment(p)
    with mpmath.workdps(50):
        matrix = mpmath.matrix(p.left.tolist())
        for factor in p.factors[1:]:
            matrix = matrix * mpmath.matrix(factor.tolist())
        exact = float(sum(entry**2 for entry in matrix))
    if energy is not None:
        assert abs(energy.value.item() - exact) <= energy.error.item() + 1e-16 * exact
        assert energy.error.item() <= 1e-9 * energy.value.item()


def test_plain_products_are_answered_and_bad_gauges_and_changes_are_not() -> None:
    p = gaussian((30, 4, 20), 0, batch=(2,))
    energy = second_moment(p)
    assert energy is not None
    torch.testing.assert_close(energy.value, p.dense().square().sum((-2, -1)), rtol=1e-12, atol=0)
    scale = torch.tensor([1e9, 1.0, 1.0, 1e-9], dtype=torch.float64)
    assert second_moment(Product(p.left * scale, p.right / scale[:, None])) is None
    assert second_moment(p - p * 0.5) is None


def test_stacks_of_copies_and_matrices_that_are_not_finite() -> None:
    p = gaussian((5, 3), 0)
    copies = second_moment(Product(p.left.expand(4, 5, 3)))
    assert copies is not None
    assert copies.value.shape == copies.error.shape == (4,)
    broken = torch.stack([p.left, torch.full_like(p.left, torch.nan)])
    energy = second_moment(Product(broken))
    assert energy is not None
    assert energy.value.isnan().tolist() == [False, True]
