"""Gram matrices of the two halves of a product, with what rounding has done to them.

Every half `H = A_1 ... A_b` is walked from its outer end: `G_1 = A_1^T A_1`, then `G <- A_i^T G A_i`. Accumulation may
be in float32; everything that is no longer than an inner width is in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.product.bounds import (
    BLOCK_TERMS,
    UNIT,
    accumulation,
    blocked,
    column_lengths,
    largest_eigenvalue_bound,
    leaning,
)
from rankwise.product.parallel import share_out
from rankwise.product.scaling import equilibration

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Bool, Float

    NormBound = Callable[[Tensor], Tensor]

# A converted piece should still be in the cache of a core when it is multiplied; a GPU wants large batches instead.
PIECE_BYTES = {"cpu": 1 << 21, "cuda": 1 << 29}

# Outside these powers of two the squares in a Gram may have lost more to underflow or overflow than to rounding.
SAFE_RANGE = {torch.float32: (2.0**-86, 2.0**100), torch.float64: (2.0**-900, 2.0**900)}


@dataclass(frozen=True)
class Half:
    """The Gram of one half of a product, with the pieces of its error bound.

    The error is kept in a form that follows the columns when they are rescaled: `relative * |G|` for a first factor,
    and `carried * |F| + fresh * sqrt(|F| tr F)` for a later one with the Gram `F`.
    """

    gram: Float[Tensor, "*batch w w"]
    relative: float
    safe: Bool[Tensor, "*batch"]
    last: Float[Tensor, "*batch w w"] | None = None
    carried: Float[Tensor, "*batch"] | float = 0.0
    fresh: Float[Tensor, "*batch"] | float = 0.0

    @property
    def lengths(self) -> Float[Tensor, "*batch w"]:
        """The lengths of the columns of the half."""
        return diagonal(self.gram).clamp_min(0).sqrt()

    def rescaled(self, scale: Float[Tensor, "*batch w"]) -> Half:
        """The same half with its columns multiplied by powers of two."""
        last = None if self.last is None else _on_both_sides(self.last, scale)
        return replace(self, gram=_on_both_sides(self.gram, scale), last=last)

    def flattened(self, batch: torch.Size) -> Half:
        """The same half with one batch axis, over all matrices of a product with these batch dimensions."""
        return replace(
            self,
            gram=_flat(self.gram, batch, 2),
            safe=_flat(self.safe, batch, 0),
            last=None if self.last is None else _flat(self.last, batch, 2),
            carried=_flat(self.carried, batch, 0) if isinstance(self.carried, Tensor) else self.carried,
            fresh=_flat(self.fresh, batch, 0) if isinstance(self.fresh, Tensor) else self.fresh,
        )

    def __getitem__(self, part: slice) -> Half:
        """Some of the matrices of a flattened half, in float64."""
        return replace(
            self,
            gram=self.gram[part].double(),
            safe=self.safe[part],
            last=None if self.last is None else self.last[part],
            carried=self.carried[part] if isinstance(self.carried, Tensor) else self.carried,
            fresh=self.fresh[part] if isinstance(self.fresh, Tensor) else self.fresh,
        )

    def norm_and_error(self, norm_bound: NormBound) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """A bound of the 2-norm of the Gram as computed, and one of what rounding has added to it."""
        norm = norm_bound(self.gram)
        if self.last is None:
            return norm, self.relative * norm
        last = norm_bound(self.last)
        return norm, self.carried * last + self.fresh * (last * diagonal(self.last).sum(-1)).sqrt()


def half_gram(factors: list[Tensor], dtype: torch.dtype, unit: float) -> Half:
    """The Gram of `A_1 ... A_b` in its last width.

    Arguments:
        factors: at least one, from the outer end.
        dtype: in which to accumulate the Gram of the first, large factor: float32 or float64.
        unit: the roundoff of that accumulation (more than that of `dtype` where tensor cores round the inputs).
    """
    first = factors[0]
    gram = column_gram(first, dtype)
    # Roundings of the inputs to a shorter type, with signs of their own, count like two more units for each column.
    lost = 0.0 if torch.promote_types(first.dtype, dtype) == dtype else 2 * unit * first.shape[-1]
    half = Half(gram, blocked(first.shape[-2]) * unit + lost, _safe(gram, first, dtype))
    if len(factors) > 1:
        half = replace(half, gram=half.gram.double())
    for factor in factors[1:]:
        half = _step(half, factor.double())
    return half


def _step(half: Half, factor: Tensor) -> Half:
    """`G <- A^T G A`, the width where both meet equilibrated first."""
    scale, inverse = equilibration(half.lengths, column_lengths(factor.mT))
    half, factor = half.rescaled(scale), factor * inverse[..., None]
    norm, carried = half.norm_and_error(largest_eigenvalue_bound)
    last, gram = factor.mT @ factor, factor.mT @ (half.gram @ factor)
    # A column that rounding has left without a length could not be brought to the size of what it meets.
    known = (diagonal(gram) > 0) | (diagonal(last) == 0)
    return Half(
        gram=gram,
        relative=0.0,
        safe=half.safe & squares_in_range(half.gram) & _safe(last, factor, torch.float64) & known.all(-1),
        last=last,
        carried=carried + 2 * leaning(factor.shape[-2]) * UNIT * norm,
        fresh=2 * accumulation(factor.shape[-2]) * UNIT * norm,
    )


def column_gram(factor: Float[Tensor, "*batch m r"], dtype: torch.dtype) -> Float[Tensor, "*batch r r"]:
    """`A^T A`, accumulated in the given type, to which the factor is converted piece by piece, in blocks of its rows.

    >>> column_gram(torch.tensor([[3.0], [4.0]], dtype=torch.bfloat16), torch.float64)
    tensor([[25.]], dtype=torch.float64)
    """
    *batch, rows, columns = factor.shape
    flat = factor.reshape(-1, rows, columns)
    gram = torch.empty(len(flat), columns, columns, dtype=dtype, device=factor.device)
    limit = PIECE_BYTES.get(factor.device.type, 1 << 29) // dtype.itemsize
    step = max(1, limit // (rows * columns))

    def fill(start: int) -> None:
        target = gram[start : start + step]
        for row in range(0, rows, BLOCK_TERMS):
            piece = flat[start : start + step, row : row + BLOCK_TERMS].to(dtype)
            if row == 0:
                torch.bmm(piece.mT, piece, out=target)
            else:  # not `baddbmm`, which would go on adding single terms to a sum that is already large
                target += torch.bmm(piece.mT, piece)

    share_out(fill, range(0, len(flat), step), factor.device)
    return gram.reshape(*batch, columns, columns)


def _safe(gram: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Whether no squared column length has been lost to underflow or overflow."""
    squares = diagonal(gram)
    low, high = SAFE_RANGE[dtype]
    if dtype == torch.float64 and factor.dtype != torch.float64:
        return squares.isfinite().all(-1)  # squares of shorter types cannot leave the range: a zero is a zero
    unsure = ~(squares >= low)
    if bool(unsure.any()):  # rarely: a column of zeros is no loss
        unsure &= factor.abs().amax(-2) != 0
    return ~unsure.any(-1) & (squares <= high).all(-1)


def squares_in_range(gram: Float[Tensor, "*batch r r"]) -> Bool[Tensor, "*batch"]:
    """Whether the squares of a Gram's entries, which its norm is made of, cannot all have underflowed."""
    in_range = diagonal(gram).amax(-1) >= SAFE_RANGE[torch.float64][0] ** 0.5
    return in_range if bool(in_range.all()) else in_range | (gram == 0).all(-1).all(-1)


def diagonal(matrices: Float[Tensor, "*batch r r"]) -> Float[Tensor, "*batch r"]:
    return matrices.diagonal(dim1=-2, dim2=-1)


def _on_both_sides(gram: Tensor, scale: Tensor) -> Tensor:
    return (gram * scale[..., :, None]).mul_(scale[..., None, :])


def _flat(values: Tensor, batch: torch.Size, matrix_axes: int) -> Tensor:
    own = values.shape[values.ndim - matrix_axes :]
    return values.expand((*batch, *own)).reshape(-1, *own)
