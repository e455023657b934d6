"""Tensor train: a tensor as a chain of matrices, one for each index of each mode."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.moves import BALANCED, MOST_SWEEPS, balancing_move
from rankwise.product.product import Product
from rankwise.product.tensor_forms import TensorForm, check_rows


@dataclass(frozen=True, repr=False)
class TensorTrain(TensorForm):
    """A chain of cores, `X[n_1, ..., n_N] = C_1[n_1] C_2[n_2] ... C_N[n_N]`, a row times matrices times a column.

    With `L_0 = R_N = 1`, `L_i = sum_n C_i[n]^T L_{i-1} C_i[n]` from the left and `R_{i-1} = sum_n C_i[n] R_i C_i[n]^T`
    from the right, `|X|^2 = L_N`, and half of it has the gradient `L_{i-1} C_i[n] R_i`.

    Arguments:
        cores: for each mode `[r_{i-1}, size_i, r_i]`, with `r_0 = r_N = 1`.

    >>> TensorTrain((torch.randn(1, 5, 2), torch.randn(2, 4, 3), torch.randn(3, 3, 1)))
    TensorTrain(5x4x3 of rank 2x3, float32)
    """

    @property
    def shape(self) -> torch.Size:
        return torch.Size(core.shape[1] for core in self.cores)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(core.shape[2] for core in self.cores[:-1])

    def unfolded(self, rows: int = 1) -> Product:
        check_rows(self, rows)
        left, right = (reduce(_contracted, side) for side in (self.cores[:rows], self.cores[rows:]))
        return Product(left.flatten(0, 1), right.flatten(1, 2))

    def gradients(self) -> tuple[Tensor, ...]:
        lefts, rights = [self.cores[0].new_ones(1, 1)], [self.cores[0].new_ones(1, 1)]
        for core in self.cores[:-1]:
            lefts.append(torch.einsum("lnr,lns->rs", _from_left(lefts[-1], core), core))
        for core in reversed(self.cores[1:]):
            rights.append(torch.einsum("lnr,knr->lk", core @ rights[-1], core))
        rights.reverse()
        return tuple(
            _from_left(left, core) @ right for left, core, right in zip(lefts, self.cores, rights, strict=True)
        )

    def junctions(self) -> tuple[Product, ...]:
        """Neighbouring cores with all other indices as rows and as columns."""
        return tuple(Product(one.flatten(0, 1), two.flatten(1, 2)) for one, two in pairwise(self.cores))

    @torch.no_grad()
    def balanced(self) -> TensorTrain:
        """The same tensor with `sum_n C_i[n]^T C_i[n] = sum_n C_{i+1}[n] C_{i+1}[n]^T` at every bond.

        Bond by bond the two cores are balanced; each step lowers the sum of their squared norms, until none changes
        anything.
        """
        cores = [core.double() for core in self.cores]
        for _ in range(MOST_SWEEPS):
            largest = 0.0
            for bond in range(len(cores) - 1):
                one, two = cores[bond : bond + 2]
                move = balancing_move(Product(one.flatten(0, 1), two.flatten(1, 2)))
                cores[bond : bond + 2] = one @ move.matrix, _from_left(move.inverse, two)
                largest = max(largest, move.stretch.max().item())
            if not largest > BALANCED:
                break
        return TensorTrain(tuple(core.to(old.dtype) for core, old in zip(cores, self.cores, strict=True)))

    def _check(self) -> None:
        outer = {self.cores[0].shape[0], self.cores[-1].shape[-1]}
        fits = len(self.cores) >= 2 and outer == {1} and all(core.ndim == 3 for core in self.cores)
        if not fits or any(one.shape[2] != two.shape[0] for one, two in pairwise(self.cores)):
            shapes = ", ".join(str(tuple(core.shape)) for core in self.cores)
            raise UserError(
                "a tensor train needs a core [left rank, size, right rank] for each of two or more modes, its outer "
                f"ranks 1 and its inner ones equal, got {shapes}"
            )


def _contracted(one: Tensor, two: Tensor) -> Tensor:
    """Two neighbouring cores as one, their modes joined."""
    return torch.tensordot(one, two, dims=1).flatten(1, 2)


def _from_left(matrix: Tensor, core: Tensor) -> Tensor:
    return torch.tensordot(matrix, core, dims=1)
