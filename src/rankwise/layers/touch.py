"""One change of one stored factor: a matrix from the left, one from the right, written in place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rankwise.product.moves import Move
from rankwise.sites.factor import Factor


@dataclass(frozen=True, kw_only=True)
class Touch:
    """`F -> H^{-1} F G` for the part of a parameter that a factor is.

    What is linear in gradients of that part goes the other way, `dF -> H^T dF G^{-T}`. Everything is computed in
    float64 and rounded once.

    Arguments:
        factor: where the part is.
        before: the move `H` at the junction on its left, or None.
        after: the move `G` at the junction on its right, or None.
    """

    factor: Factor
    before: Move | None = None
    after: Move | None = None

    @property
    def is_diagonal(self) -> bool:
        """Whether every entry is only scaled."""
        return all(move.is_diagonal for move in (self.before, self.after) if move is not None)

    def fits(self, parameter: Tensor) -> bool:
        """Whether the part has a matrix for each of the moves, so that none would be written over another."""
        batch = self.factor.view(parameter).shape[:-2]
        moves = (move.matrix for move in (self.before, self.after) if move is not None)
        return all(torch.broadcast_shapes(batch, matrix.shape[:-2]) == batch for matrix in moves)

    def move(self, parameter: Tensor) -> None:
        """Move the part of a parameter in place."""
        _apply(
            self.factor.view(parameter),
            None if self.before is None else self.before.inverse,
            None if self.after is None else self.after.matrix,
        )

    def move_gradient(self, gradient: Tensor) -> None:
        """Move a tensor that is linear in gradients of the parameter."""
        _apply(self.factor.view(gradient), *self._gradient_sides())

    def move_squares(self, squares: Tensor) -> None:
        """Move squares of gradients: exactly where the moves are diagonal, else as if entries were uncorrelated."""
        left, right = (None if side is None else side.square() for side in self._gradient_sides())
        _apply(self.factor.view(squares), left, right)

    def _gradient_sides(self) -> tuple[Tensor | None, Tensor | None]:
        return (
            None if self.before is None else self.before.matrix.mT,
            None if self.after is None else self.after.inverse.mT,
        )


def _apply(view: Tensor, from_left: Tensor | None, from_right: Tensor | None) -> None:
    moved = view.double()
    if from_left is not None:
        moved = from_left @ moved
    if from_right is not None:
        moved = moved @ from_right
    view.copy_(moved)
