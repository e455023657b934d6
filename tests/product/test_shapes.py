"""Shapes broadcast as torch broadcasts them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankwise.product.shapes import broadcast

shapes = st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=4)


@given(shapes)
def test_as_torch_does(given_shapes: list[list[int]]) -> None:
    try:
        expected = torch.broadcast_shapes(*given_shapes)
    except RuntimeError:
        with pytest.raises(ValueError, match="do not broadcast"):
            broadcast(*given_shapes)
    else:
        assert broadcast(*given_shapes) == expected


def test_a_spectrum_does_not_wait_for_a_computer_algebra_system() -> None:
    program = (
        "import sys, torch; from rankwise.product.product import Product; "
        "p = Product(torch.randn(2, 9, 3), torch.randn(3, 9)); p.spectrum(); (p - p).shape; "
        "print('sympy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
