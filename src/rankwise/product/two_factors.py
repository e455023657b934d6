"""A product of any depth as two factors that meet at its narrowest width, open to autograd."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.product.chain import half_chains
from rankwise.product.product import Product

if TYPE_CHECKING:
    from jaxtyping import Float


def two_factors(
    product: Product, dtype: torch.dtype | None = None
) -> tuple[Float[Tensor, "*left m w"] | None, Float[Tensor, "*right w n"] | None]:
    """Factors `left [*, m, w]` and `right [*, w, n]` with `left @ right` the product and `w` its narrowest width.

    Where the narrowest width is `m` or `n`, the factor on that side would be an identity: it is None, and the other one
    is the matrix itself, which is then no larger than the factors. No batch axis that a side shares is expanded.

    Arguments:
        product: any depth, any batch.
        dtype: the type to compute in; by default that of the product, but no less than float32.

    >>> left, right = two_factors(Product(torch.eye(5, 3), torch.eye(3, 2), torch.eye(2, 4)))
    >>> left.shape, right.shape
    (torch.Size([5, 2]), torch.Size([2, 4]))
    """
    dtype = dtype or torch.promote_types(product.dtype, torch.float32)
    left, right = ([factor.to(dtype) for factor in half] for half in half_chains(product))
    return reduce(torch.matmul, left) if left else None, reduce(torch.matmul, right).mT if right else None
