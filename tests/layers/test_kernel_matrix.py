"""Kernels as matrices: nothing is lost, and the two directions of the window stay apart."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankwise.layers.kernel_matrix import kernel_to_matrix, matrix_shape, matrix_to_kernel
from tests.layers.draws import generator

SHAPES = st.tuples(*[st.integers(1, 4)] * 4)


@pytest.mark.parametrize("form", ["spatial", "channel"])
@given(shape=SHAPES)
def test_there_and_back(form, shape):
    kernel = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    matrix = kernel_to_matrix(kernel, form)
    assert tuple(matrix.shape) == matrix_shape(shape, form)
    assert torch.equal(matrix_to_kernel(matrix, shape, form), kernel)


def test_each_entry_is_where_its_formula_says():
    outputs, inputs, height, width = shape = (3, 2, 4, 5)
    kernel = torch.randn(shape, generator=generator(0))
    spatial, channel = (kernel_to_matrix(kernel, form) for form in ("spatial", "channel"))
    for o in range(outputs):
        for i in range(inputs):
            for row in range(height):
                for column in range(width):
                    entry = kernel[o, i, row, column]
                    assert spatial[o * height + row, i * width + column] == entry
                    assert channel[o, (i * height + row) * width + column] == entry


def test_a_separable_kernel_has_the_rank_of_its_parts_and_a_mere_reshape_has_not():
    """Two channels out, two in; every pair of channels has the outer product of two one-dimensional windows."""
    down = torch.randn(6, 3, 5, generator=generator(1), dtype=torch.float64)
    across = torch.randn(5, 6, 3, generator=generator(2), dtype=torch.float64)
    kernel = torch.einsum("okr,ril->oikl", down, across)
    assert torch.linalg.matrix_rank(kernel_to_matrix(kernel, "spatial")).item() == 5
    assert torch.linalg.matrix_rank(kernel.reshape(6 * 3, 6 * 3)).item() == 18


@pytest.mark.parametrize("form", ["spatial", "channel"])
def test_norms_are_kept(form):
    kernel = torch.randn(4, 3, 3, 2, generator=generator(3))
    assert kernel_to_matrix(kernel, form).norm().item() == pytest.approx(kernel.norm().item())
