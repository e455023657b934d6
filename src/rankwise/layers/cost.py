"""Which way through a factorized layer is the cheaper one."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

Step = Literal["two-step", "one-step"]

# What it costs to move a number to memory and back, in multiplications. Between the factors stand activations that the
# dense layer has not, and in a convolution of few channels they decide. Measured by benchmarks/layers.py.
MOVING = 100


class Work(NamedTuple):
    """What one position of the output takes: a token, or a pixel.

    Arguments:
        multiplications: of weights with activations.
        moved: activations that are read or written.
    """

    multiplications: int
    moved: int

    @property
    def cost(self) -> int:
        """In multiplications."""
        return self.multiplications + MOVING * self.moved


def one_step_is_cheaper(*, step_by_step: Work, at_once: Work, forming: int, positions: int) -> bool:
    """Whether forming the weight and applying it costs less than applying the factors in turn.

    `positions * at_once + forming < positions * step_by_step`. For each product of the forward pass the backward pass
    has two of the same sizes, on either side, so the forward pass decides for both.

    Arguments:
        step_by_step: through the factors.
        at_once: through the dense weight.
        forming: multiplications that form the weight from its factors.
        positions: how many positions the output has.
    """
    # An exported graph serves every batch size, so it cannot ask for one: there the cost of forming is shared by many.
    if torch.compiler.is_exporting():
        return at_once.cost < step_by_step.cost
    return positions * at_once.cost + forming < positions * step_by_step.cost


def forming_cost(rows: int, columns: int, rank: int, inner: int) -> int:
    """Multiplications that form a chain of factors, from the side that is cheaper.

    >>> forming_cost(8, 6, 2, 0), forming_cost(8, 6, 2, 1)
    (96, 120)
    """
    return rank * rows * columns + inner * rank * rank * min(rows, columns)
