"""Frobenius norms from Grams, within their error."""

from __future__ import annotations

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.product.measures import norm_from_grams
from rankwise.product.norms import frobenius
from rankwise.product.product import Product
from tests.product.draws import gaussian


@settings(max_examples=50)
@given(widths=st.lists(st.integers(1, 6), min_size=2, max_size=5), gauge=st.integers(0, 12), seed=st.integers(0, 2**31))
def test_the_norm_is_right_to_its_error_bound(widths: list[int], gauge: int, seed: int) -> None:
    p = gaussian(widths, seed)
    if p.depth > 1:
        scale = torch.logspace(0, gauge, widths[1], dtype=torch.float64)
        p = Product(p.left * scale, p.factors[1] / scale[:, None], *p.factors[2:])
    norm = frobenius(p)
    with mpmath.workdps(50):
        matrix = mpmath.matrix(p.left.tolist())
        for factor in p.factors[1:]:
            matrix = matrix * mpmath.matrix(factor.tolist())
        assert abs(mpmath.mpf(norm.value.item()) - mpmath.norm(matrix, 2)) <= norm.error.item()


@pytest.mark.parametrize("widths", [(300, 20, 400), (20, 300), (40, 200, 30), (200, 30, 20, 100)])
def test_the_error_of_plain_products_is_small(widths: tuple[int, ...]) -> None:
    p = gaussian(widths, 0, batch=(2,), dtype=torch.float32)
    norm = frobenius(p)
    assert bool((norm.error <= 1e-10 * norm.value).all())
    truth = torch.linalg.matrix_norm(p.to(torch.float64).dense())
    torch.testing.assert_close(norm.value, truth, rtol=1e-13, atol=0)


def test_a_diagonal_gauge_costs_two_factors_nothing() -> None:
    p = gaussian((30, 4, 20), 0)
    scale = torch.tensor([1e12, 1.0, 1.0, 1e-12], dtype=torch.float64)
    moved = Product(p.left * scale, p.right / scale[:, None])
    assert frobenius(moved).error <= 2 * frobenius(p).error


def test_grams_answer_unless_the_gauge_is_bad_or_it_is_a_change() -> None:
    p = gaussian((30, 4, 20), 0)
    assert norm_from_grams(p) is not None
    turn = torch.eye(4, dtype=torch.float64) + 1e6 * torch.ones(4, 4, dtype=torch.float64).triu(1)
    assert norm_from_grams(Product(p.left @ turn, torch.linalg.inv(turn) @ p.right)) is None
    assert norm_from_grams(p - p * 0.5) is None
    assert norm_from_grams(p.spectrum()) is None


@pytest.mark.parametrize("scale", [1e-250, 1e-150, 1e150, 1e250])
def test_scales_that_squares_would_lose(scale: float) -> None:
    p = gaussian((8, 3, 6), 1)
    for moved in (Product(p.left * scale, p.right), Product(p.left / scale, p.right * scale * scale**0.1)):
        truth = frobenius(p).value.item() * (scale if moved.right is p.right else scale**0.1)
        assert frobenius(moved).value.item() == pytest.approx(truth, rel=1e-12)
        assert frobenius(moved).error.item() < 1e-12 * truth


def test_stacks_of_copies_and_matrices_that_are_not_finite() -> None:
    p = gaussian((5, 3), 0)
    copies = frobenius(Product(p.left.expand(4, 5, 3)))
    assert copies.value.shape == copies.error.shape == (4,)
    broken = torch.stack([p.left, torch.full_like(p.left, torch.nan), torch.zeros_like(p.left)])
    norm = frobenius(Product(broken))
    assert norm.value.isnan().tolist() == [False, True, False]
    assert norm.error.isinf().tolist() == [False, True, False]
    assert norm.value[2] == norm.error[2] == 0
