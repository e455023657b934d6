"""Tucker: a tensor as a small core with a matrix along each mode."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.moves import BALANCED, MOST_SWEEPS, balancing_move
from rankwise.product.product import Product
from rankwise.product.tensor_forms import TensorForm, check_rows, mode_product


@dataclass(frozen=True, repr=False)
class Tucker(TensorForm):
    """A core with a matrix along each mode, `X = C x_1 A_1 ... x_N A_N`.

    With the Grams `G_i = A_i^T A_i` and `C' = C x_1 G_1 ... x_N G_N`, `|X|^2 = <C, C'>`, and half of it has the
    gradient `C'` for the core and `A_i M_i` for the matrices, `M_i` being `C` times `C` with all Grams but `G_i`
    applied, contracted over all modes but `i`.

    Arguments:
        cores: the core `[r_1, ..., r_N]`, then the matrices `[size_i, r_i]`.

    >>> Tucker((torch.randn(2, 3, 2), torch.randn(5, 2), torch.randn(4, 3), torch.randn(3, 2)))
    Tucker(5x4x3 of rank 2x3x2, float32)
    """

    @property
    def shape(self) -> torch.Size:
        return torch.Size(matrix.shape[0] for matrix in self.matrices)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.core.shape)

    @property
    def core(self) -> Tensor:
        return self.cores[0]

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        return self.cores[1:]

    def unfolded(self, rows: int = 1) -> Product:
        check_rows(self, rows)
        modes = dict(enumerate(self.matrices))
        left_modes, right_modes = (
            {mode: modes[mode] for mode in side} for side in (list(modes)[:rows], list(modes)[rows:])
        )
        # The core goes to the wider side, so that the two factors meet at the narrower one.
        if self.core.shape[:rows].numel() <= self.core.shape[rows:].numel():
            left = reduce(torch.kron, self.matrices[:rows])
            return Product(left, _applied(self.core, right_modes).reshape(left.shape[1], -1))
        right = reduce(torch.kron, self.matrices[rows:]).mT
        return Product(_applied(self.core, left_modes).reshape(-1, right.shape[0]), right)

    def _rebuilt(self) -> Tensor:
        return _applied(self.core, dict(enumerate(self.matrices)))

    def gradients(self) -> tuple[Tensor, ...]:
        grams = [matrix.mT @ matrix for matrix in self.matrices]
        gradients = []
        for mode, matrix in enumerate(self.matrices):
            others = _applied(self.core, {place: gram for place, gram in enumerate(grams) if place != mode})
            gradients.append(matrix @ (_unfolded_core(self.core, mode) @ _unfolded_core(others, mode).mT))
        return (_applied(self.core, dict(enumerate(grams))), *gradients)

    def junctions(self) -> tuple[Product, ...]:
        """Each matrix with the core unfolded along its mode."""
        return tuple(Product(matrix, _unfolded_core(self.core, mode)) for mode, matrix in enumerate(self.matrices))

    @torch.no_grad()
    def balanced(self) -> Tucker:
        """The same tensor with `A_i^T A_i = C_(i) C_(i)^T` along every mode.

        Mode by mode the matrix and the core are balanced; each step lowers the sum of their squared norms, until none
        changes anything.
        """
        core, matrices = self.core.double(), [matrix.double() for matrix in self.matrices]
        for _ in range(MOST_SWEEPS):
            largest = 0.0
            for mode, matrix in enumerate(matrices):
                move = balancing_move(Product(matrix, _unfolded_core(core, mode)))
                matrices[mode] = matrix @ move.matrix
                core = mode_product(core, move.inverse, mode)
                largest = max(largest, move.stretch.max().item())
            if not largest > BALANCED:
                break
        moved = zip((core, *matrices), self.cores, strict=True)
        return Tucker(tuple(one.to(old.dtype) for one, old in moved))

    def _check(self) -> None:
        fits = len(self.cores) >= 3 and self.core.ndim == len(self.matrices)
        fits = fits and all(matrix.ndim == 2 for matrix in self.matrices)
        if not fits or any(m.shape[1] != rank for m, rank in zip(self.matrices, self.core.shape, strict=True)):
            shapes = ", ".join(str(tuple(core.shape)) for core in self.cores)
            raise UserError(
                "Tucker needs a core [r_1, ..., r_N] and then a matrix [size_i, r_i] for each of its modes, "
                f"got {shapes}"
            )


def _applied(core: Tensor, matrices: dict[int, Tensor]) -> Tensor:
    for mode, matrix in matrices.items():
        core = mode_product(core, matrix, mode)
    return core


def _unfolded_core(core: Tensor, mode: int) -> Tensor:
    return core.movedim(mode, 0).flatten(1)
