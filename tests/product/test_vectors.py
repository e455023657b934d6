"""Singular triplets: what they rebuild, their signs, and bounds that hold against sixty digits."""

from __future__ import annotations

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.product import Product
from rankwise.product.vectors import SingularVectors
from tests.product.draws import gaussian, with_values

widths = st.lists(st.integers(1, 7), min_size=2, max_size=5)
seeds = st.integers(0, 2**31)


def sines(found: Tensor, exact: mpmath.matrix, columns: int) -> list[float]:
    """The sines of the angles between float64 columns and exact ones, as `|x - (y.x) y| / |x|` in many digits."""
    result = []
    for column in range(columns):
        x = mpmath.matrix([mpmath.mpf(value) for value in found[:, column].tolist()])
        y = exact[:, column]
        along = sum(a * b for a, b in zip(x, y, strict=True))
        rest = x - along * y
        result.append(float(mpmath.norm(rest) / mpmath.norm(x)))
    return result


def exact_svd(product: Product) -> tuple[mpmath.matrix, list[float], mpmath.matrix]:
    matrix = mpmath.matrix(product.factors[0].tolist())
    for factor in product.factors[1:]:
        matrix = matrix * mpmath.matrix(factor.tolist())
    u, s, vt = mpmath.svd_r(matrix, full_matrices=False)
    return u, [float(value) for value in s], vt.T


def check_bounds(product: Product, triplets: SingularVectors) -> None:
    count = triplets.values.shape[-1]
    with mpmath.workdps(60):
        u, s, v = exact_svd(product)
        left, right = sines(triplets.left, u, count), sines(triplets.right, v, count)
    for index in range(count):
        assert abs(triplets.values[index].item() - s[index]) <= triplets.value_error[index].item()
        assert left[index] <= triplets.left_error[index].item()
        assert right[index] <= triplets.right_error[index].item()


@settings(max_examples=40)
@given(widths=widths, seed=seeds)
def test_bounds_hold_for_random_products(widths: list[int], seed: int) -> None:
    p = gaussian(widths, seed)
    check_bounds(p, p.svd())


@pytest.mark.parametrize(
    "values",
    [(1.0, 0.5, 0.25), (1.0, 1.0 - 1e-9, 1e-3), (1.0, 1e-6, 1e-12), (1.0, 1.0, 1.0), (1.0, 1e-15, 1e-16)],
)
def test_bounds_hold_where_values_crowd_or_vanish(values: tuple[float, ...]) -> None:
    p = with_values(values, 6, 5, 0)
    check_bounds(p, p.svd())


def test_bounds_are_worth_having_and_clusters_are_owned_up_to() -> None:
    apart = with_values([4.0, 2.0, 1.0], 9, 8, 0).svd()
    assert (apart.left_error < 1e-11).all()
    close = with_values([2.0, 2.0, 1.0], 9, 8, 0).svd()
    assert (close.left_error[:2] == 1.0).all()
    assert close.left_error[2].item() < 1e-11
    assert close.subspace_error(2).item() < 1e-11
    assert close.subspace_error(1).item() == 1.0
    null = with_values([2.0, 1.0, 0.0], 9, 8, 0).svd()
    assert null.right_error[2].item() == 1.0
    assert null.right_error[0].item() < 1e-11


@settings(max_examples=60)
@given(widths=widths, seed=seeds, data=st.data())
def test_triplets_rebuild_the_product_with_orthonormal_vectors(
    widths: list[int], seed: int, data: st.DataObject
) -> None:
    p = gaussian(widths, seed, batch=(2,))
    k = data.draw(st.integers(1, p.max_rank))
    triplets = p.svd(k)
    dense = p.dense()
    scale = float(torch.linalg.matrix_norm(dense).max())
    identity = torch.eye(k, dtype=torch.float64).expand(2, k, k)
    torch.testing.assert_close(triplets.left.mT @ triplets.left, identity, rtol=0, atol=1e-13)
    torch.testing.assert_close(triplets.right.mT @ triplets.right, identity, rtol=0, atol=1e-13)
    image = triplets.left * triplets.values[..., None, :]
    torch.testing.assert_close(dense @ triplets.right, image, rtol=0, atol=1e-12 * scale)
    torch.testing.assert_close(triplets.values, torch.linalg.svdvals(dense)[..., :k], rtol=0, atol=1e-12 * scale)
    largest = triplets.left.gather(-2, triplets.left.abs().argmax(-2, keepdim=True))
    assert (largest > 0).all()


def test_signs_do_not_depend_on_the_gauge() -> None:
    p = with_values([3.0, 2.0, 1.0], 7, 6, 4)
    turned = Product(-p.left, -p.right)
    torch.testing.assert_close(p.svd().left, turned.svd().left, rtol=0, atol=1e-12)
    torch.testing.assert_close(p.svd().right, turned.svd().right, rtol=0, atol=1e-12)


def test_batches_broadcast_and_bad_matrices_are_marked() -> None:
    left = gaussian((6, 2), 0, batch=(3,)).left.clone()
    left[1, 0, 0] = torch.nan
    right = gaussian((2, 5), 1, batch=(2, 1)).left
    triplets = Product(left, right).svd()
    assert triplets.left.shape == (2, 3, 6, 2)
    assert triplets.right.shape == (2, 3, 5, 2)
    assert set(triplets.failures) == {1, 4}
    assert triplets.values[:, 1].isnan().all()
    assert triplets.right[:, 1].isnan().all()
    assert triplets.value_error[:, 1].isinf().all()
    assert triplets.left[:, [0, 2]].isfinite().all()
    copies = gaussian((4, 2, 3), 0)
    stack = Product(*(factor.expand(3, *factor.shape) for factor in copies.factors)).svd(1)
    assert stack.left.shape == (3, 4, 1)
    torch.testing.assert_close(stack.left[2], copies.svd(1).left)


def test_a_change_below_its_floor_has_no_vectors() -> None:
    p = gaussian((6, 3, 5), 0, dtype=torch.float32)
    moved = Product(p.left * (1 + 1e-7), p.right)
    triplets = (moved - p).svd()
    assert list(triplets.failures) == [0]
    assert triplets.left.isnan().all()


def test_zero_and_half_precision() -> None:
    zero = Product(torch.zeros(4, 2), torch.zeros(2, 3)).svd()
    assert (zero.values == 0).all()
    assert (zero.left_error == 1).all()
    assert zero.left.isfinite().all()
    half = gaussian((8, 3, 7), 0, dtype=torch.bfloat16)
    torch.testing.assert_close(half.svd().values, half.to(torch.float64).svd().values)


def test_asking_for_more_than_there_is() -> None:
    p = gaussian((6, 3, 5), 0)
    for k in (0, 4):
        with pytest.raises(UserError, match="1 to 3"):
            p.svd(k)
    with pytest.raises(UserError, match="size"):
        p.svd(2).subspace_error(2)
