"""The direction in which a product moves when its factors do: a product again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.product import Product


def tangent(product: Product, directions: Sequence[Tensor]) -> Product:
    """The first-order change of `A_1 ... A_k` when each factor moves by `D_i`.

        sum_i A_1 ... D_i ... A_k  =  [D_1, A_1] @ [[A_2, 0], [D_2, A_2]] @ ... @ [A_k; D_k]

    With the gradients of the factors as directions it is minus what a small step of gradient descent adds to the
    product; its rank is at most twice the inner width.

    Arguments:
        product: any stack.
        directions: one for each factor, of the same shape.

    >>> moved = tangent(Product(torch.tensor([[2.0]]), torch.tensor([[5.0]])), [torch.ones(1, 1), torch.ones(1, 1)])
    >>> moved.dense().item()
    7.0
    """
    factors = product.factors
    shapes = [tuple(factor.shape) for factor in factors]
    given = [tuple(direction.shape) for direction in directions]
    if given != shapes:
        raise UserError(f"the directions have shapes {given}: give one for each factor, of shapes {shapes}")
    if product.depth == 1:
        return Product(directions[0])
    inner = [
        torch.cat([torch.cat([factor, torch.zeros_like(factor)], -1), torch.cat([direction, factor], -1)], -2)
        for factor, direction in zip(factors[1:-1], directions[1:-1], strict=True)
    ]
    left = torch.cat([directions[0], factors[0]], -1)
    right = torch.cat([factors[-1], directions[-1]], -2)
    return Product(left, *inner, right, is_sum=True)
