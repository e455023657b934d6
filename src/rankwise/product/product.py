"""The one object of this library: a stack of matrix products kept as its factors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.arithmetic import without_autocast
from rankwise.product.shapes import broadcast

if TYPE_CHECKING:
    from jaxtyping import Float

    from rankwise.product.spectrum import Method, Spectrum
    from rankwise.product.vectors import SingularVectors

REAL_TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Start:
    """What a change is measured from: the norms of the start's factors, and the share below which a change is noise."""

    norm: Tensor
    """An upper bound of the start's Frobenius norm, one for each matrix of the batch."""
    floor: float
    """A change smaller than `floor * norm` is rounding: it has no rank."""


class Product:
    """A stack of matrix products `left @ inner @ ... @ right`, never multiplied out unless asked.

    The factors are `left [*batch, m, r]`, any number of inner ones `[*batch, r, r']`, and `right [*batch, r', n]`.
    Batch dimensions broadcast against one another, so keys that a group of heads share are stored once.
    A product of one factor is a matrix.

    Arguments:
        factors: the matrices from left to right, real and floating, on one device.

    >>> left, right = torch.randn(12, 768, 64), torch.randn(1, 64, 768)
    >>> Product(left, right)
    Product(12 of 768x64x768, float32)
    """

    __slots__ = ("factors", "is_sum", "start")
    factors: tuple[Tensor, ...]
    start: Start | None
    is_sum: bool
    """Whether the factors are concatenations of other products' factors, so that they have no balance of their own."""

    def __init__(
        self, *factors: Float[Tensor, "*batch rows columns"], start: Start | None = None, is_sum: bool = False
    ) -> None:
        _check(factors)
        self.factors = factors
        self.start = start
        self.is_sum = is_sum

    @property
    def left(self) -> Tensor:
        """The first factor, `[*batch, m, r]`."""
        return self.factors[0]

    @property
    def inner(self) -> tuple[Tensor, ...]:
        """The factors between the first and the last."""
        return self.factors[1:-1]

    @property
    def right(self) -> Tensor:
        """The last factor, `[*batch, r', n]` (the first one too where there is only one)."""
        return self.factors[-1]

    @property
    def depth(self) -> int:
        """The number of factors."""
        return len(self.factors)

    @property
    def batch_shape(self) -> torch.Size:
        """The broadcast batch dimensions of all factors."""
        return broadcast(*(factor.shape[:-2] for factor in self.factors))

    @property
    def shape(self) -> torch.Size:
        """The shape of the stack multiplied out, `(*batch, m, n)`."""
        return torch.Size((*self.batch_shape, self.left.shape[-2], self.right.shape[-1]))

    @property
    def widths(self) -> tuple[int, ...]:
        """All matrix dimensions along the chain: `(m, r, ..., r', n)`."""
        return (self.left.shape[-2], *(factor.shape[-1] for factor in self.factors))

    @property
    def max_rank(self) -> int:
        """The largest rank that the widths allow, and the number of singular values that a spectrum holds."""
        return min(self.widths)

    @property
    def count(self) -> int:
        """The number of matrices in the stack."""
        return self.batch_shape.numel()

    @property
    def dtype(self) -> torch.dtype:
        """The type that the factors promote to."""
        dtype = self.factors[0].dtype
        for factor in self.factors[1:]:
            dtype = torch.promote_types(dtype, factor.dtype)
        return dtype

    @property
    def device(self) -> torch.device:
        return self.left.device

    def dense(self) -> Float[Tensor, "*batch m n"]:
        """Multiply the stack out, in the type of the factors and in the order that costs least."""
        with without_autocast(self.device):
            return _multiply([factor.to(self.dtype) for factor in self.factors]).expand(self.shape)

    def to(self, target: torch.device | torch.dtype | str) -> Product:
        """The same product on another device or in another type."""
        factors = [factor.to(target) for factor in self.factors]
        # The norm of the start stays in float64: the floor of a change does not move with the type of its factors.
        start = None if self.start is None else Start(self.start.norm.to(factors[0].device), self.start.floor)
        return Product(*factors, start=start, is_sum=self.is_sum)

    def detach(self) -> Product:
        """The same factors, outside the autograd graph."""
        return Product(*(factor.detach() for factor in self.factors), start=self.start, is_sum=self.is_sum)

    @property
    def T(self) -> Product:  # noqa: N802 - the name that torch and numpy users know
        """The transposed product: every factor transposed, in reverse order."""
        return Product(*(factor.mT for factor in reversed(self.factors)), start=self.start, is_sum=self.is_sum)

    def __getitem__(self, index: Any) -> Product:
        """Index the batch dimensions (row and column indices are refused: they would not be a stack of whole matrices).

        >>> Product(torch.randn(3, 4, 8, 2), torch.randn(1, 4, 2, 8))[0, 1:]
        Product(3 of 8x2x8, float32)
        """
        batch = self.batch_shape
        chosen = torch.arange(self.count, device=self.device).reshape(batch)[index] if batch else _no_batch(index)
        index = index if isinstance(index, tuple) else (index,)
        expanded = (factor.expand(*batch, *factor.shape[-2:]) for factor in self.factors)
        # An Ellipsis would reach into the matrix dimensions of a factor: close the index over the batch dimensions.
        closed = (*index, slice(None), slice(None)) if any(part is Ellipsis for part in index) else index
        start = None if self.start is None else Start(self.start.norm.expand(batch)[index], self.start.floor)
        result = Product(*(factor[closed] for factor in expanded), start=start, is_sum=self.is_sum)
        assert result.batch_shape == chosen.shape
        return result

    def __len__(self) -> int:
        if not self.batch_shape:
            raise TypeError("a single product has no length: it has no batch dimension")
        return self.batch_shape[0]

    def __iter__(self) -> Iterator[Product]:
        return (self[index] for index in range(len(self)))

    def __matmul__(self, other: Product | Tensor) -> Product:
        """The chain of both products' factors; a tensor counts as a product of one factor."""
        other = other if isinstance(other, Product) else Product(other)
        if self.shape[-1] != other.shape[-2]:
            raise UserError(
                f"cannot multiply {self!r} by {other!r}: {self.shape[-1]} columns meet {other.shape[-2]} rows, "
                "they must be as many"
            )
        return Product(*self.factors, *other.factors, is_sum=self.is_sum or other.is_sum)

    def __rmatmul__(self, other: Tensor) -> Product:
        return Product(other) @ self

    def __mul__(self, scalar: float) -> Product:
        """Scale by a number: `|c|^(1/depth)` goes on every factor and the sign on the last, so balance is unchanged."""
        if not isinstance(scalar, int | float):
            return NotImplemented
        share = abs(scalar) ** (1 / self.depth)
        sign = -1.0 if scalar < 0 else 1.0
        scaled = [factor * share for factor in self.factors[:-1]]
        start = None if self.start is None else Start(self.start.norm * abs(scalar), self.start.floor)
        return Product(*scaled, self.right * (share * sign), start=start, is_sum=self.is_sum)

    __rmul__ = __mul__

    def __truediv__(self, scalar: float) -> Product:
        return self * (1 / scalar)

    def __neg__(self) -> Product:
        return Product(*self.factors[:-1], -self.right, start=self.start, is_sum=self.is_sum)

    def __add__(self, other: Product) -> Product:
        """The sum, by concatenation of the factors: `[L, L'] @ [R; R']`; unequal depth is padded with identities."""
        from rankwise.product.sums import add

        return add(self, other) if isinstance(other, Product) else NotImplemented

    def __sub__(self, other: Product) -> Product:
        """The change from `other` to `self`, in the form that keeps its small singular values.

        For factors of equal shapes this is `[L - L', L'] @ [R; R - R']`, the differences taken first and in float32 or
        better; otherwise it is the sum with the negative.
        """
        from rankwise.product.sums import change

        return change(self, other) if isinstance(other, Product) else NotImplemented

    def spectrum(self, method: Method = "auto", tolerance: float = 1e-6) -> Spectrum:
        """The singular values of every matrix of the stack, largest first, each with an absolute error bound.

        See `rankwise.product.spectrum.spectrum` for the methods, the bounds and how `auto` escalates.
        """
        from rankwise.product.spectrum import spectrum

        return spectrum(self, method=method, tolerance=tolerance)

    def svd(self, k: int | None = None) -> SingularVectors:
        """The leading `k` singular triplets (all of them by default), with gap-based errors of the vectors."""
        from rankwise.product.vectors import svd

        return svd(self, k)

    def balanced(self) -> Product:
        """The same matrices with balanced factors `U sqrt(S)` and `sqrt(S) V^T`, so that `A^T A = B B^T`."""
        from rankwise.product.gauge import balanced

        return balanced(self)

    def truncated(self, *, rank: int | None = None, energy: float | None = None) -> Product:
        """The best approximation of a given rank, or of the smallest that keeps a share of the energy; balanced."""
        from rankwise.product.gauge import truncated

        return truncated(self, rank=rank, energy=energy)

    def weighted(self, left: Tensor | None = None, right: Tensor | None = None) -> Product:
        """The product seen through activations: `C_l^{1/2} P C_r^{1/2}` for the covariances of what meets its sides."""
        from rankwise.product.gauge import weighted

        return weighted(self, left, right)

    def __repr__(self) -> str:
        count = f"{'x'.join(map(str, self.batch_shape))} of " if self.batch_shape else ""
        return f"Product({count}{'x'.join(map(str, self.widths))}, {str(self.dtype).removeprefix('torch.')})"


def _check(factors: tuple[Tensor, ...]) -> None:
    if not factors:
        raise UserError("a Product needs at least one factor: Product(left, right)")
    for position, factor in enumerate(factors):
        if not isinstance(factor, Tensor) or factor.ndim < 2:
            given = f"shape {tuple(factor.shape)}" if isinstance(factor, Tensor) else type(factor).__name__
            raise UserError(f"factor {position} must be a tensor of two or more dimensions, got {given}")
        if factor.dtype not in REAL_TYPES:
            raise UserError(f"factor {position} is {factor.dtype}: give a real floating type, float64 down to bfloat16")
        if 0 in factor.shape[-2:]:
            raise UserError(f"factor {position} is empty: shape {tuple(factor.shape)}")
    if len({factor.device for factor in factors}) > 1:
        devices = ", ".join(str(factor.device) for factor in factors)
        raise UserError(f"the factors lie on different devices ({devices}): move them with .to(device) first")
    for position, (one, two) in enumerate(pairwise(factors)):
        if one.shape[-1] != two.shape[-2]:
            raise UserError(
                f"factors {position} and {position + 1} do not chain: {tuple(one.shape)} has {one.shape[-1]} columns "
                f"and {tuple(two.shape)} has {two.shape[-2]} rows"
            )
    try:
        broadcast(*(factor.shape[:-2] for factor in factors))
    except ValueError:
        shapes = ", ".join(str(tuple(factor.shape)) for factor in factors)
        raise UserError(f"the batch dimensions do not broadcast: {shapes}") from None


def _no_batch(index: Any) -> Tensor:
    if index == () or index is Ellipsis:
        return torch.empty((), device="meta")
    raise UserError("this product has no batch dimension to index: it is one matrix")


def _multiply(factors: list[Tensor]) -> Tensor:
    """Multiply neighbours in the order that costs least, the narrowest result first."""
    while len(factors) > 1:
        costs = [one.shape[-2] * one.shape[-1] * two.shape[-1] for one, two in pairwise(factors)]
        best = min(range(len(costs)), key=costs.__getitem__)
        factors[best : best + 2] = [factors[best] @ factors[best + 1]]
    return factors[0]
