"""Tensors kept as cores: what CP, Tucker and tensor trains have in common, and their closed-form decay."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankwise.errors import UserError
from rankwise.product.arithmetic import without_autocast
from rankwise.product.product import REAL_TYPES, Product

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class TensorForm(ABC):
    """A tensor of two or more modes kept as small cores, never rebuilt unless asked.

    Arguments:
        cores: the parameters; what they mean is the subclass's.
    """

    cores: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "cores", tuple(self.cores))
        for position, core in enumerate(self.cores):
            if not isinstance(core, Tensor) or core.dtype not in REAL_TYPES or 0 in core.shape:
                given = f"{core.dtype} of {tuple(core.shape)}" if isinstance(core, Tensor) else type(core).__name__
                raise UserError(f"core {position} must be a real floating tensor without empty axes, got {given}")
        self._check()

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """The size of every mode of the tensor."""

    @property
    @abstractmethod
    def ranks(self) -> tuple[int, ...]:
        """The inner sizes, in the order in which they are asked for."""

    @abstractmethod
    def unfolded(self, rows: int = 1) -> Product:
        """The tensor as a matrix of its first `rows` modes against the others, a product of two factors."""

    @abstractmethod
    def gradients(self) -> tuple[Tensor, ...]:
        """The gradient of `|X|_F^2 / 2` for every core, from the cores' Grams; in the type of the cores."""

    @abstractmethod
    def junctions(self) -> tuple[Product, ...]:
        """Where an invertible matrix and its inverse could be put in: two neighbours each, as a product.

        `balance` of a junction is what decay on the cores does there; `balanced` makes them all zero.
        """

    @abstractmethod
    def balanced(self) -> Self:
        """The same tensor with the least sum of squared norms of its cores: every junction is balanced.

        Where a rank is more than its junction can fill, the directions that one side lacks stay as they are.
        """

    def _rebuilt(self) -> Float[Tensor, "*shape"]:
        return self.unfolded(len(self.shape) // 2).dense().reshape(self.shape)

    @abstractmethod
    def _check(self) -> None:
        """Refuse cores that do not fit together."""

    @property
    def dtype(self) -> torch.dtype:
        """The type that the cores promote to."""
        dtype = self.cores[0].dtype
        for core in self.cores[1:]:
            dtype = torch.promote_types(dtype, core.dtype)
        return dtype

    @property
    def parameters(self) -> int:
        """How many numbers the cores hold."""
        return sum(core.numel() for core in self.cores)

    def dense(self) -> Float[Tensor, "*shape"]:
        """The tensor itself, differentiable."""
        with without_autocast(self.cores[0].device):
            return self._rebuilt()

    def to(self, target: torch.device | torch.dtype | str) -> Self:
        """The same form on another device or in another type."""
        return type(self)(tuple(core.to(target) for core in self.cores))

    def frobenius_penalty(self) -> Float[Tensor, ""]:
        """Half the squared Frobenius norm of the tensor, to differentiate; never through the rebuilt tensor.

        The gradients come from the small Grams of the cores (see the forms), in float32 or better; gradients of
        gradients are not offered.

        >>> from rankwise.product.cp import CP
        >>> one = torch.tensor([[2.0]], requires_grad=True)
        >>> penalty = CP((one, torch.tensor([[3.0], [0.0]]), torch.ones(2, 1))).frobenius_penalty()
        >>> penalty.backward(); penalty.item(), one.grad.item()
        (36.0, 36.0)
        """
        return _Penalty.apply(type(self), *self.cores)

    def __repr__(self) -> str:
        shape, ranks = ("x".join(map(str, sizes)) for sizes in (self.shape, self.ranks))
        return f"{type(self).__name__}({shape} of rank {ranks}, {str(self.dtype).removeprefix('torch.')})"


class _Penalty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kind: type[TensorForm], *cores: Tensor) -> Tensor:  # type: ignore[override]
        dtype = torch.promote_types(kind(cores).dtype, torch.float32)
        wide = tuple(core.to(dtype) for core in cores)
        with without_autocast(cores[0].device):
            gradients = kind(wide).gradients()
        ctx.save_for_backward(*(gradient.to(core.dtype) for gradient, core in zip(gradients, cores, strict=True)))
        # |X|^2 is of degree two in each core, so that <core, gradient> is |X|^2 for any core: take the smallest.
        smallest = min(range(len(cores)), key=lambda place: cores[place].numel())
        return (wide[smallest] * gradients[smallest]).sum() / 2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        wanted = ctx.needs_input_grad[1:]
        return (
            None,
            *(weight * gradient if want else None for gradient, want in zip(ctx.saved_tensors, wanted, strict=True)),
        )


def mode_product(tensor: Tensor, matrix: Float[Tensor, "new old"], mode: int) -> Tensor:
    """The tensor with a matrix applied along one mode.

    >>> mode_product(torch.ones(2, 3), torch.full((4, 3), 2.0), 1).shape
    torch.Size([2, 4])
    """
    return (tensor.movedim(mode, -1) @ matrix.mT).movedim(-1, mode)


def all_but_one(matrices: Sequence[Tensor]) -> list[Tensor]:
    """For each place the elementwise product of all the other matrices, without a division.

    >>> [matrix.item() for matrix in all_but_one([torch.tensor(2.0), torch.tensor(3.0), torch.tensor(5.0)])]
    [15.0, 10.0, 6.0]
    """
    before, after = [torch.ones_like(matrices[0])], [torch.ones_like(matrices[0])]
    for first, last in zip(matrices[:-1], reversed(matrices[1:]), strict=True):
        before.append(before[-1] * first)
        after.append(after[-1] * last)
    return [one * two for one, two in zip(before, reversed(after), strict=True)]


def check_rows(form: TensorForm, rows: int) -> None:
    """Refuse an unfolding that leaves one side without modes."""
    if not 1 <= rows < len(form.shape):
        raise UserError(f"{form!r} unfolds with 1 to {len(form.shape) - 1} modes as rows, got {rows}")
