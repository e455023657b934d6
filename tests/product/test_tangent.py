from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from rankwise.errors import UserError
from rankwise.product.product import Product
from rankwise.product.tangent import tangent


@pytest.mark.parametrize("widths", [(7, 5), (7, 3, 6), (7, 3, 4, 6), (6, 3, 5, 2, 7)])
def test_the_tangent_is_the_derivative(widths):
    generator = torch.Generator().manual_seed(0)

    def draw() -> list[torch.Tensor]:
        return [torch.randn(2, m, n, generator=generator, dtype=torch.float64) for m, n in pairwise(widths)]

    factors, directions = draw(), draw()
    found = tangent(Product(*factors), directions)

    def along(*parts: torch.Tensor) -> torch.Tensor:
        return Product(*parts).dense()

    _, derivative = torch.autograd.functional.jvp(along, tuple(factors), tuple(directions))
    torch.testing.assert_close(found.dense(), derivative, rtol=1e-12, atol=1e-12)
    assert found.max_rank <= 2 * min(widths[1:-1], default=7)


def test_shared_keys_stay_shared():
    product = Product(torch.randn(3, 4, 8, 2), torch.randn(3, 1, 2, 8))
    found = tangent(product, [torch.ones_like(factor) for factor in product.factors])
    assert found.right.shape == (3, 1, 4, 8)


def test_directions_of_other_shapes_are_one_line():
    with pytest.raises(UserError, match=r"give one for each factor, of shapes \[\(2, 1\), \(1, 2\)\]"):
        tangent(Product(torch.ones(2, 1), torch.ones(1, 2)), [torch.ones(2, 1)])
