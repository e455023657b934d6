"""Values and gradients of the penalties, against autograd of the dense matrix and against finite differences."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.product.penalties import frobenius_penalty, nuclear_penalty
from rankwise.product.product import Product
from tests.product.draws import frame, gaussian

widths = st.lists(st.integers(1, 6), min_size=2, max_size=5)


def leaves(product: Product) -> list[torch.Tensor]:
    return [factor.clone().requires_grad_() for factor in product.factors]


@settings(max_examples=40)
@given(widths=widths, seed=st.integers(0, 2**31))
def test_frobenius_penalty_has_the_value_and_gradient_of_the_dense_matrix(widths: list[int], seed: int) -> None:
    p = gaussian(widths, seed, batch=(2,))
    ours, dense = leaves(p), leaves(p)
    value = frobenius_penalty(Product(*ours))
    expected = Product(*dense).dense().square().sum((-2, -1)) / 2
    torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-11)
    weight = torch.tensor([0.3, 2.0], dtype=torch.float64)
    (value * weight).sum().backward()
    (expected * weight).sum().backward()
    for one, two in zip(ours, dense, strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("widths", [(6, 3, 5), (3, 6, 5), (5, 4), (7, 4, 2, 6), (7, 5, 3, 4, 6)])
@pytest.mark.parametrize("penalty", [frobenius_penalty, nuclear_penalty])
def test_finite_differences_agree(penalty, widths: tuple[int, ...]) -> None:
    factors = leaves(gaussian(widths, 3, batch=(2,)))
    assert torch.autograd.gradcheck(lambda *factors: penalty(Product(*factors)), factors)


@pytest.mark.parametrize("penalty", [frobenius_penalty, nuclear_penalty])
def test_a_shared_factor_gathers_the_gradient_of_its_group(penalty) -> None:
    shapes = [(2, 3, 6, 4), (2, 1, 4, 5)]
    generator = torch.Generator().manual_seed(0)
    factors = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(lambda *factors: penalty(Product(*factors)), factors)
    expanded = [factor.expand(2, 3, *factor.shape[-2:]) for factor in factors]
    torch.testing.assert_close(penalty(Product(*expanded)), penalty(Product(*factors)))
    assert torch.autograd.gradcheck(lambda left, right: penalty(Product(left, right.expand(2, 3, 4, 5))), factors)


@pytest.mark.parametrize("penalty", [frobenius_penalty, nuclear_penalty])
@pytest.mark.parametrize("widths", [(5, 2, 4), (2, 5, 4), (3, 4)])
def test_a_stack_of_copies_counts_every_copy(penalty, widths: tuple[int, ...]) -> None:
    factors = leaves(gaussian(widths, 0))
    value = penalty(Product(*(factor.expand(3, *factor.shape) for factor in factors)))
    assert value.shape == (3,)
    value.sum().backward()
    alone = leaves(gaussian(widths, 0))
    (3 * penalty(Product(*alone))).backward()
    for one, two in zip(factors, alone, strict=True):
        torch.testing.assert_close(one.grad, two.grad)


@settings(max_examples=30)
@given(widths=widths, seed=st.integers(0, 2**31))
def test_nuclear_penalty_is_the_sum_of_singular_values(widths: list[int], seed: int) -> None:
    p = gaussian(widths, seed)
    expected = torch.linalg.svdvals(p.dense()).sum()
    assert nuclear_penalty(p).item() == pytest.approx(expected.item(), rel=1e-10)


def test_nuclear_gradient_on_a_deficient_product_is_the_subgradient_of_least_norm() -> None:
    """Of all subgradients `U V^T + W`, the one with `W = 0`: its matrix has exactly the rank of the product."""
    left = frame(7, 2, 0) * torch.tensor([3.0, 0.5], dtype=torch.float64) @ frame(4, 2, 1).mT
    right = gaussian((4, 6), 2).left
    left.requires_grad_()
    nuclear_penalty(Product(left, right)).backward()
    with torch.no_grad():
        u, s, vh = torch.linalg.svd(left @ right)
        assert (s[:2] > 0.1).all()
        polar = u[:, :2] @ vh[:2]
    torch.testing.assert_close(left.grad, polar @ right.mT, rtol=1e-9, atol=1e-9)


def test_zero_factors_have_no_gradient_and_no_nan() -> None:
    for penalty in (frobenius_penalty, nuclear_penalty):
        factors = leaves(Product(torch.zeros(3, 2), torch.zeros(2, 4)))
        value = penalty(Product(*factors))
        value.backward()
        assert value.item() == 0.0
        assert all((factor.grad == 0).all() for factor in factors)


def test_a_bad_matrix_leaves_the_gradients_of_the_others_alone() -> None:
    p = gaussian((5, 2, 4), 0, batch=(3,))
    broken = p.left.clone()
    broken[1, 0, 0] = torch.nan
    factors = leaves(Product(broken, p.right))
    values = nuclear_penalty(Product(*factors))
    values.sum().backward()
    clean = leaves(p)
    nuclear_penalty(Product(*clean)).sum().backward()
    assert values.isnan().tolist() == [False, True, False]
    for one, two in zip(factors, clean, strict=True):
        torch.testing.assert_close(one.grad[[0, 2]], two.grad[[0, 2]])
        assert one.grad[1].isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("penalty", [frobenius_penalty, nuclear_penalty])
def test_narrow_types_compute_in_float32_or_better_and_get_gradients_of_their_own_type(penalty, dtype) -> None:
    p = gaussian((12, 3, 10), 1, dtype=dtype)
    factors, wide = leaves(p), leaves(p.to(torch.float64))
    value, expected = penalty(Product(*factors)), penalty(Product(*wide))
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    value.backward()
    expected.backward()
    for one, two in zip(factors, wide, strict=True):
        assert one.grad.dtype == dtype
        torch.testing.assert_close(one.grad.double(), two.grad, rtol=2 * torch.finfo(dtype).eps, atol=1e-3)


def test_only_the_factors_that_learn_get_gradients() -> None:
    p = gaussian((5, 2, 4), 0)
    for penalty in (frobenius_penalty, nuclear_penalty):
        right = p.right.clone().requires_grad_()
        penalty(Product(p.left, right)).backward()
        assert right.grad is not None
        assert p.left.grad is None


def test_nothing_of_the_size_of_the_matrix_is_formed() -> None:
    """A product of 3000 x 2 x 3000: nine million entries if multiplied out, twelve thousand as factors."""
    p = gaussian((3000, 2, 3000), 0)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            outputs = result if isinstance(result, tuple | list) else [result]
            largest = max([largest, *(out.numel() for out in outputs if isinstance(out, torch.Tensor))])
            return result

    factors = leaves(p)
    with Watch():
        (frobenius_penalty(Product(*factors)) + nuclear_penalty(Product(*factors))).backward()
    assert largest <= 2 * sum(rows * columns for rows, columns in pairwise(p.widths))
