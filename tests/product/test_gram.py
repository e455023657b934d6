"""Grams of long, short, shared and mixed factors, with the errors that they promise."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.product import gram
from rankwise.product.bounds import UNIT, accumulation, largest_eigenvalue_bound
from rankwise.product.gram import column_gram, half_gram
from rankwise.product.gram_values import gram_values, square_root
from rankwise.product.product import Product
from tests.product.draws import frame, gaussian


@pytest.mark.parametrize("piece", [1, 64, 1 << 21])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7, 3), (200, 2), (3, 9)])
def test_pieces_and_row_blocks_give_the_whole_gram(monkeypatch, piece, dtype, shape):
    monkeypatch.setitem(gram.PIECE_BYTES, "cpu", piece)
    factor = gaussian(shape, 0, batch=(2, 5)).left
    found = column_gram(factor, dtype)
    assert found.dtype == dtype
    bound = (accumulation(shape[0]) + 2) * torch.finfo(dtype).eps * float(factor.square().sum(-2).amax())
    torch.testing.assert_close(found.double(), factor.mT @ factor, rtol=0, atol=bound)


def test_a_strided_view_needs_no_copy_to_be_read():
    packed = gaussian([6, 12], 0).left
    heads = packed.reshape(6, 4, 3).permute(1, 0, 2)
    torch.testing.assert_close(column_gram(heads, torch.float64), heads.mT @ heads)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 8), min_size=2, max_size=4), st.integers(0, 2**31))
def test_the_gram_of_a_float32_chain_keeps_its_promise(widths, seed):
    product = gaussian(sorted(widths, reverse=True), seed, dtype=torch.float32)
    half = half_gram(list(product.factors), torch.float32, 2.0**-24)
    dense = product.to(torch.float64).dense()
    scale = 10 ** torch.linspace(-6, 6, dense.shape[-1], dtype=torch.float64)
    scale = 2.0 ** scale.log2().round()
    for one, columns in ((half, dense), (half.rescaled(scale), dense * scale)):
        off = torch.linalg.matrix_norm(one.gram - columns.mT @ columns, 2)
        assert float(off) <= float(one.norm_and_error(largest_eigenvalue_bound)[1]) * (1 + 1e-9)


def test_columns_that_may_have_underflowed_are_not_safe():
    sound = torch.ones(3, 2, dtype=torch.float64)
    zero, tiny = sound.clone(), sound.clone()
    zero[:, 1], tiny[:, 1] = 0, 1e-200
    safe = half_gram([torch.stack([sound, zero, tiny])], torch.float64, UNIT).safe
    assert safe.tolist() == [True, True, False]
    assert not bool(half_gram([torch.full((3, 2), 1e-20)], torch.float32, 2.0**-24).safe)


@pytest.mark.parametrize("rank", [0, 1, 3, 4])
def test_a_square_root_of_any_rank(rank):
    factor = frame(4, 4, 0)[:, :rank]
    matrix = factor @ factor.mT if rank else torch.zeros(4, 4, dtype=torch.float64)
    root, shift = square_root(matrix)
    assert torch.linalg.matrix_norm(root @ root.mT - matrix, 2) <= shift + 1e-15


def test_a_square_root_of_what_rounding_has_made_indefinite():
    matrix = torch.diag(torch.tensor([1.0, 0.5, -1e-13], dtype=torch.float64))
    root, shift = square_root(matrix)
    assert 1e-13 <= float(shift) < 1e-12
    assert torch.linalg.matrix_norm(root @ root.mT - matrix, 2) <= float(shift)


def test_norms_are_computed_only_where_the_cheap_bound_is_not_enough():
    product = gaussian([60, 12, 60], 0)
    deficient = Product(torch.cat([product.left[:, :6], product.left[:, :6]], -1), product.right)
    loose = gram_values(deficient, torch.float64, 1.0, UNIT)
    just_missed = 0.95 * float(loose.worst / loose.values[0])
    tight = gram_values(deficient, torch.float64, just_missed, UNIT)
    hopeless = gram_values(deficient, torch.float64, 1e-12, UNIT)
    assert torch.equal(hopeless.error, loose.error)
    torch.testing.assert_close(loose.values, tight.values)
    assert bool((tight.error < loose.error).any())
    truth = torch.linalg.svdvals(deficient.dense())[:12]
    assert bool(((tight.values - truth).abs() <= tight.error).all())
