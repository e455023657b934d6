"""Which way through a factorized layer is the cheaper one."""

from __future__ import annotations

import torch


def one_step_is_cheaper(*, step_by_step: int, at_once: int, forming: int, positions: int) -> bool:
    """Whether forming the weight and applying it takes fewer multiplications than applying the factors in turn.

    Forward and backward cost the same on either side, two products of the same sizes for each product of the forward
    pass, so the forward pass decides: `positions * at_once + forming < positions * step_by_step`.

    Arguments:
        step_by_step: multiplications for each position, through the factors.
        at_once: the same through the dense weight.
        forming: multiplications that form the weight from its factors.
        positions: how many positions the input has: tokens, or pixels of the output.
    """
    # An exported graph serves every batch size, so it cannot ask for one: there the cost of forming is shared by many.
    if torch.compiler.is_exporting():
        return at_once < step_by_step
    return positions * at_once + forming < positions * step_by_step


def forming_cost(rows: int, columns: int, rank: int, inner: int) -> int:
    """Multiplications that form a chain of factors, from the side that is cheaper.

    >>> forming_cost(8, 6, 2, 0), forming_cost(8, 6, 2, 1)
    (96, 120)
    """
    return rank * rows * columns + inner * rank * rank * min(rows, columns)
