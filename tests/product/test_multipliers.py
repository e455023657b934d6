"""Gradients from Grams alone, against the dense product, for chains and for groups that share a factor."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.product.multipliers import multipliers, pulled_back
from rankwise.product.product import Product
from tests.product.draws import gaussian


def from_grams(product: Product, at_junction) -> list[torch.Tensor]:
    left, *inner, right = product.factors
    found = multipliers(left.mT @ left, inner, right @ right.mT, at_junction)
    whole = [left @ found.first, *found.inner, found.last @ right]
    return [each.sum_to_size(factor.shape) for each, factor in zip(whole, product.factors, strict=True)]


def fourth_power(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`f = sum s^4 / 4`, whose dense gradient is `W W^T W`: `X = H G`."""
    core = right @ left
    return left @ core, core @ right


@settings(max_examples=40)
@given(widths=st.lists(st.integers(1, 6), min_size=3, max_size=6), seed=st.integers(0, 2**31))
def test_chains_of_any_widths(widths: list[int], seed: int) -> None:
    product = gaussian(widths, seed, batch=(2,))
    factors = [factor.clone().requires_grad_() for factor in product.factors]
    dense = Product(*factors).dense()
    for at_junction, value in (
        (lambda left, right: (left, right), dense.square().sum() / 2),
        (fourth_power, (dense.mT @ dense).square().sum() / 4),
    ):
        expected = torch.autograd.grad(value, factors, retain_graph=True)
        for found, wanted in zip(from_grams(product, at_junction), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8 * max(1.0, float(wanted.abs().max())))


def test_a_group_is_its_concatenation() -> None:
    """Three heads with one key, and three outputs with one value: the function sees the stacked matrix."""
    generator = torch.Generator().manual_seed(0)
    for shapes in ([(2, 3, 6, 4), (2, 1, 4, 5)], [(2, 1, 6, 4), (2, 3, 4, 5)]):
        factors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
        leaves = [factor.clone().requires_grad_() for factor in factors]
        heads = Product(*leaves).dense()
        stacked = heads.flatten(1, 2) if shapes[1][1] == 1 else heads.transpose(1, 2).flatten(2, 3)
        expected = torch.autograd.grad((stacked.mT @ stacked).square().sum() / 4, leaves)
        for found, wanted in zip(from_grams(Product(*factors), fourth_power), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-7)


def test_a_chain_whose_both_ends_are_shared_is_taken_head_by_head() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 7, 5), (3, 5, 4), (3, 4, 5), (1, 5, 6)]
    leaves = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    dense = Product(*leaves).dense()
    expected = torch.autograd.grad((dense.mT @ dense).square().sum() / 4, leaves)
    found = from_grams(Product(*(leaf.detach() for leaf in leaves)), fourth_power)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-6)


@settings(max_examples=30)
@given(widths=st.lists(st.integers(1, 6), min_size=2, max_size=5), seed=st.integers(0, 2**31))
def test_a_gradient_of_the_matrix_is_pulled_back_to_every_factor(widths: list[int], seed: int) -> None:
    product = gaussian(widths, seed)
    gradient = gaussian((widths[0], 2, widths[-1]), seed + 1)
    leaves = [factor.clone().requires_grad_() for factor in product.factors]
    expected = torch.autograd.grad((Product(*leaves).dense() * gradient.dense()).sum(), leaves)
    for found, wanted in zip(pulled_back(product, gradient), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
