"""Any chain as two factors that meet at the narrowest width."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.product.product import Product
from rankwise.product.two_factors import two_factors
from tests.product.draws import gaussian


@settings(max_examples=60)
@given(widths=st.lists(st.integers(1, 7), min_size=2, max_size=6), seed=st.integers(0, 2**31))
def test_the_two_factors_multiply_to_the_product_and_meet_at_its_narrowest_width(widths: list[int], seed: int) -> None:
    p = gaussian(widths, seed, batch=(2,))
    left, right = two_factors(p)
    width = min(widths)
    identity = torch.eye(width, dtype=torch.float64)
    one = identity if left is None else left
    two = identity if right is None else right
    assert one.shape[-1] == two.shape[-2] == width
    torch.testing.assert_close(one @ two, p.dense(), rtol=1e-10, atol=1e-10)
    assert (left is None) == (widths.index(width) == 0)


def test_types_and_shared_axes() -> None:
    p = Product(torch.randn(4, 6, 2, dtype=torch.bfloat16), torch.randn(1, 2, 5, dtype=torch.bfloat16))
    left, right = two_factors(p)
    assert left is not None
    assert right is not None
    assert left.dtype == right.dtype == torch.float32
    assert right.shape == (1, 2, 5)
    assert two_factors(p, torch.float64)[0].dtype == torch.float64
