"""The algebra of products agrees with that of the matrices they stand for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import UserError
from rankwise.product.product import Product, Start
from tests.product.draws import gaussian

seeds = st.integers(0, 2**31)
widths = st.lists(st.integers(1, 6), min_size=2, max_size=5)


@settings(max_examples=30, deadline=None)
@given(widths, seeds)
def test_dense_is_the_chain_multiplied_from_the_left(sizes, seed):
    product = gaussian(sizes, seed, batch=(2,))
    expected = product.left
    for factor in product.factors[1:]:
        expected = expected @ factor
    torch.testing.assert_close(product.dense(), expected)
    assert product.widths == tuple(sizes)
    assert product.max_rank == min(sizes)
    assert product.shape == (2, sizes[0], sizes[-1])


@settings(max_examples=30, deadline=None)
@given(widths, seeds, st.floats(-1e3, 1e3))
def test_transpose_scalar_and_sign_act_on_the_matrix(sizes, seed, scalar):
    product = gaussian(sizes, seed)
    dense = product.dense()
    torch.testing.assert_close(product.T.dense(), dense.mT)
    torch.testing.assert_close((scalar * product).dense(), scalar * dense)
    torch.testing.assert_close((-product).dense(), -dense)
    torch.testing.assert_close((product / 2).dense(), dense / 2)


@pytest.mark.parametrize("scalar", [9.0, -0.25])
def test_a_scalar_keeps_balance(scalar):
    left = torch.randn(6, 3, dtype=torch.float64)
    balanced = Product(left, left.mT)
    scaled = balanced * scalar
    gram_left, gram_right = scaled.left.mT @ scaled.left, scaled.right @ scaled.right.mT
    torch.testing.assert_close(gram_left, gram_right)
    torch.testing.assert_close(gram_left, abs(scalar) * (left.mT @ left))


def test_products_chain_with_products_and_tensors():
    one, two = gaussian([3, 2, 4], 0), gaussian([4, 5], 1)
    torch.testing.assert_close((one @ two).dense(), one.dense() @ two.dense())
    matrix = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close((one @ matrix).dense(), one.dense() @ matrix)
    torch.testing.assert_close((matrix @ one).dense(), matrix @ one.dense())
    with pytest.raises(UserError, match="4 columns meet 3 rows"):
        one @ one


INDICES = [
    0,
    -1,
    slice(1, None),
    (slice(None), 2),
    (1, slice(None, 2)),
    (Ellipsis, 1),
    (Ellipsis,),
    (1, Ellipsis),
    None,
    (slice(None), None, 1),
    torch.tensor([1, 0, 1]),
    (slice(None), torch.tensor([3, 1])),
    (torch.tensor([0, 1]), torch.tensor([2, 3])),
    torch.tensor([True, False]),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing_acts_on_the_batch(index):
    product = Product(torch.randn(2, 1, 5, 3), torch.randn(4, 3, 5))
    start = Start(torch.rand(2, 1), 1e-6)
    chosen = Product(*product.factors, start=start)[index]
    closed = (*index, slice(None), slice(None)) if isinstance(index, tuple) else (index, Ellipsis)
    expected = product.dense()[closed]
    torch.testing.assert_close(chosen.dense(), expected)
    assert chosen.start is not None
    torch.testing.assert_close(chosen.start.norm, start.norm.expand(2, 4)[index])


@pytest.mark.parametrize("index", [(0, 1, 2), (Ellipsis, 0, 0, 0), 2])
def test_row_and_column_indices_are_refused(index):
    with pytest.raises(IndexError):
        gaussian([3, 2, 3], 0, batch=(2, 2))[index]


def test_one_matrix_has_no_batch():
    product = gaussian([3, 2, 3], 0)
    assert product[...].shape == product[()].shape == (3, 3)
    with pytest.raises(UserError, match="no batch dimension"):
        product[0]
    with pytest.raises(TypeError, match="no length"):
        len(product)


def test_iteration_gives_every_matrix():
    product = gaussian([3, 2, 3], 0, batch=(4,))
    assert len(product) == len(list(product)) == 4
    torch.testing.assert_close(torch.stack([one.dense() for one in product]), product.dense())


def test_types_promote_and_the_floor_of_a_change_does_not():
    product = Product(torch.ones(2, 1, dtype=torch.bfloat16), torch.ones(1, 2), start=Start(torch.tensor(1 / 3), 1e-6))
    assert product.dtype == torch.float32
    assert product.dense().dtype == torch.float32
    half = product.to(torch.float16)
    assert half.dtype == torch.float16
    assert half.start == product.start


def test_gradients_flow_through_the_algebra_and_stop_at_detach():
    left = torch.randn(3, 2, requires_grad=True)
    product = (2 * Product(left, torch.randn(2, 3))).T
    assert product.dense().requires_grad
    assert not product.detach().dense().requires_grad


REFUSED = [
    ((), "at least one factor"),
    ((torch.ones(3),), "two or more dimensions"),
    (("no tensor",), "two or more dimensions"),
    ((torch.ones(2, 2, dtype=torch.int64),), "real floating type"),
    ((torch.ones(2, 2, dtype=torch.complex64),), "real floating type"),
    ((torch.ones(0, 2),), "is empty"),
    ((torch.ones(2, 3), torch.ones(2, 2)), "do not chain"),
    ((torch.ones(2, 2, 2), torch.ones(3, 2, 2)), "do not broadcast"),
    ((torch.ones(2, 2), torch.ones(2, 2, device="meta")), "different devices"),
]


@pytest.mark.parametrize(("factors", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_no_product_is_refused_in_one_line(factors, message):
    with pytest.raises(UserError, match=message) as error:
        Product(*factors)
    assert "\n" not in str(error.value)


def test_repr_shows_batch_widths_and_type():
    assert repr(gaussian([5, 2, 3], 0, batch=(2, 4))) == "Product(2x4 of 5x2x3, float64)"
    assert repr(gaussian([5, 3], 0, dtype=torch.bfloat16)) == "Product(5x3, bfloat16)"
