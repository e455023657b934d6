"""Eigenvalues of square products against the dense matrix, and the copying score."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.eigen import copying_score, eigenvalues
from rankwise.product.product import Product
from tests.product.draws import gaussian


def same_multiset(one: Tensor, two: Tensor, tolerance: float) -> bool:
    """Whether two lists of complex numbers agree in some order, greedily."""
    rest = two.tolist()
    for value in one.tolist():
        nearest = min(range(len(rest)), key=lambda index: abs(rest[index] - value))
        if abs(rest.pop(nearest) - value) > tolerance:
            return False
    return True


@settings(max_examples=60)
@given(size=st.integers(1, 8), inner=st.lists(st.integers(1, 8), max_size=4), seed=st.integers(0, 2**31))
def test_eigenvalues_are_those_of_the_dense_matrix(size: int, inner: list[int], seed: int) -> None:
    p = gaussian((size, *inner, size), seed)
    values = eigenvalues(p)
    assert values.shape == (min(p.widths),)
    assert (values.abs().diff() <= 1e-12 * values[0].abs()).all()
    padded = torch.nn.functional.pad(values, (0, size - len(values)))
    dense = torch.linalg.eigvals(p.dense())
    # The dense matrix has defective zeros, whose computed moduli go as a root of the roundoff.
    assert same_multiset(padded, dense, 1e-3 * float(torch.linalg.matrix_norm(p.dense(), 2)))


def test_eigenvalues_do_not_suffer_from_a_diagonal_gauge() -> None:
    p = gaussian((9, 4, 9), 0)
    gauge = torch.tensor([1e8, 1e-9, 1.0, 1e5], dtype=torch.float64)
    moved = Product(p.left * gauge, p.right / gauge[:, None])
    assert same_multiset(eigenvalues(moved), eigenvalues(p), 1e-12 * float(eigenvalues(p)[0].abs()))


def test_known_scores() -> None:
    assert copying_score(Product(torch.eye(4))).item() == 1.0
    assert copying_score(Product(-torch.eye(4))).item() == -1.0
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    assert copying_score(Product(turn, torch.eye(2))).item() == pytest.approx(0.0, abs=1e-15)
    assert copying_score(Product(torch.zeros(3, 2), torch.zeros(2, 3))).item() == 0.0
    low = gaussian((50, 3), 1).left
    assert copying_score(Product(low, low.mT)).item() == pytest.approx(1.0)


def test_only_small_matrices_are_formed() -> None:
    p = gaussian((20_000, 2, 20_000), 0)
    direct = torch.linalg.eigvals(p.right @ p.left)
    assert same_multiset(eigenvalues(p), direct, 1e-9 * float(direct.abs().max()))


def test_batches_broadcast_and_bad_matrices_are_nan() -> None:
    left = gaussian((6, 2), 0, batch=(3,)).left.clone()
    left[1, 0, 0] = torch.inf
    right = gaussian((2, 6), 1, batch=(2, 1)).left
    values = eigenvalues(Product(left, right))
    assert values.shape == (2, 3, 2)
    assert values[:, 1].isnan().all()
    assert values[:, [0, 2]].isfinite().all()
    assert copying_score(Product(left, right))[:, 1].isnan().all()
    copies = Product(torch.eye(2).expand(3, 2, 2))
    assert eigenvalues(copies).shape == (3, 2)


def test_rectangular_products_are_refused() -> None:
    with pytest.raises(UserError, match="only a square product"):
        eigenvalues(gaussian((5, 2, 4), 0))
