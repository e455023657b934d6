"""Losses of a matrix, `L(W)`: what a product of factors is trained on in the lab."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True, kw_only=True)
class MatrixLoss:
    """A smooth loss `L(W)` of a matrix with its gradient `M = dL/dW`, in float64, for stacks of matrices at once.

    Arguments:
        shape: of the matrix, `(m, n)`.
        value: from `[*batch, m, n]` to `[*batch]`.
        gradient: from `[*batch, m, n]` to the same.

    >>> loss = MatrixLoss.from_function(lambda w: w.square().sum() / 2, shape=(2, 3))
    >>> loss.gradient(torch.ones(4, 2, 3).double()).shape
    torch.Size([4, 2, 3])
    """

    shape: tuple[int, int]
    value: Callable[[Tensor], Tensor] = field(repr=False)
    gradient: Callable[[Tensor], Tensor] = field(repr=False)

    @classmethod
    def from_function(cls, function: Callable[[Tensor], Tensor], *, shape: tuple[int, int]) -> MatrixLoss:
        """A loss from a torch function of one matrix to a scalar, by autograd."""
        probe = torch.zeros(shape, dtype=torch.float64)
        found = function(probe)
        if found.shape != () or found.dtype != torch.float64:
            raise UserError(
                f"the loss of a {shape[0]}x{shape[1]} matrix is {found.dtype} of shape {tuple(found.shape)}: expected "
                "a float64 scalar"
            )
        return cls(
            shape=shape, value=_over_stacks(function, shape), gradient=_over_stacks(torch.func.grad(function), shape)
        )

    @classmethod
    def denoising(cls, target: Float[Tensor, "m n"], *, scale: float = 0.5) -> MatrixLoss:
        """`scale |W - target|_F^2`: one half makes its curvature one.

        >>> MatrixLoss.denoising(torch.eye(2)).value(torch.zeros(2, 2).double()).item()
        1.0
        """
        wanted = matrix(target, "the target")
        if not scale > 0:
            raise UserError(f"a scale of {scale} was given for the loss: give a positive number such as 0.5")
        return cls(
            shape=(wanted.shape[0], wanted.shape[1]),
            value=lambda w: scale * (w - wanted).square().sum((-2, -1)),
            gradient=lambda w: 2 * scale * (w - wanted),
        )

    @classmethod
    def rugged(cls, shape: tuple[int, int], *, seed: int, waves: int = 8, height: float = 0.75) -> MatrixLoss:
        """A random smooth loss with many local minima, bounded below: a bowl with waves in random directions,

            |W - T|_F^2 / 4 + height sum_k sin(<C_k, W> + phase_k),    |C_k|_F near 2.

        >>> loss = MatrixLoss.rugged((3, 2), seed=0)
        >>> bool(loss.value(torch.zeros(3, 2).double()).isfinite())
        True
        """
        generator = torch.Generator().manual_seed(seed)
        target, directions = (
            torch.randn(*size, generator=generator, dtype=torch.float64) for size in (shape, (waves, *shape))
        )
        directions *= 2 / (shape[0] * shape[1]) ** 0.5
        phases = 2 * torch.pi * torch.rand(waves, generator=generator, dtype=torch.float64)

        def angles(w: Tensor) -> Tensor:
            return torch.einsum("...ij,kij->...k", w, directions) + phases

        return cls(
            shape=shape,
            value=lambda w: (w - target).square().sum((-2, -1)) / 4 + height * angles(w).sin().sum(-1),
            gradient=lambda w: (w - target) / 2 + height * torch.einsum("...k,kij->...ij", angles(w).cos(), directions),
        )


def _over_stacks(function: Callable[[Tensor], Tensor], shape: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    def batched(matrices: Tensor) -> Tensor:
        if matrices.ndim == 2:
            return function(matrices)
        found = torch.func.vmap(function)(matrices.reshape(-1, *shape))
        return found.reshape(*matrices.shape[:-2], *found.shape[1:])

    return batched


def matrix(values: Tensor, what: str) -> Tensor:
    """One finite matrix in float64, or the reason why it is none."""
    found = torch.as_tensor(values)
    if found.ndim != 2 or not found.numel():
        raise UserError(f"{what} has shape {tuple(found.shape)}: give one matrix [m, n]")
    found = found.detach().double()
    if not bool(found.isfinite().all()):
        raise UserError(f"{what} holds NaN or Inf: give finite numbers")
    return found


def factors_of(loss: MatrixLoss, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Two factors in float64 whose product the loss takes, or the reason why they are none."""
    one, two = matrix(left, "the left factor"), matrix(right, "the right factor")
    if one.shape[1] != two.shape[0] or (one.shape[0], two.shape[1]) != loss.shape:
        raise UserError(
            f"factors of shapes {tuple(one.shape)} and {tuple(two.shape)} were given for a loss of "
            f"{loss.shape[0]}x{loss.shape[1]} matrices: give [{loss.shape[0]}, r] and [r, {loss.shape[1]}]"
        )
    if not bool(loss.gradient(one @ two).isfinite().all()):
        raise UserError("the gradient of the loss is not finite at the given factors: check its data for NaN and 0/0")
    return one, two


def random_factors(
    shape: tuple[int, int], *, rank: int, scale: float, seed: int
) -> tuple[Float[Tensor, "m r"], Float[Tensor, "r n"]]:
    """Two factors with independent normal entries.

    >>> [tuple(factor.shape) for factor in random_factors((5, 4), rank=2, scale=0.5, seed=0)]
    [(5, 2), (2, 4)]
    """
    if rank < 1:
        raise UserError(f"a rank of {rank} was given: give at least 1")
    generator = torch.Generator().manual_seed(seed)
    left = scale * torch.randn(shape[0], rank, generator=generator, dtype=torch.float64)
    right = scale * torch.randn(rank, shape[1], generator=generator, dtype=torch.float64)
    return left, right
