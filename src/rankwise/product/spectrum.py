"""The singular values of every matrix of a stack, each with an absolute error bound."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankwise.errors import RankwiseError, UserError
from rankwise.product.arithmetic import computes
from rankwise.product.ladder import METHODS, Method, climb
from rankwise.product.product import Product

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["Method", "Spectrum", "SpectrumError", "spectrum"]

MEMORY = 2**30

UNCHANGED = "unchanged: the change is exactly zero, it has no rank"
BELOW_FLOOR = "the change is below {floor:.0e} of the start: rounding, it has no rank"


class SpectrumError(RankwiseError):
    """A spectrum could not be computed for some matrices: the text says which and why."""


@dataclass(frozen=True)
class Spectrum:
    """Singular values in float64, largest first, with what is known about each of them.

    Where a matrix failed its values are NaN, its errors infinite, and `failures` says why.
    """

    values: Float[Tensor, "*batch k"]
    method: str | tuple[str, ...] = field(kw_only=True)
    """How they were computed: one name, or one for each matrix, counted row by row."""
    error: Float[Tensor, "*batch k"] = field(kw_only=True)
    """An absolute bound: no true singular value of the stored factors is further away than this."""
    failures: Mapping[int, str] = field(kw_only=True, default_factory=dict)
    """The reason for each matrix that failed, by its number counted row by row."""

    @property
    def batch_shape(self) -> torch.Size:
        return self.values.shape[:-1]

    @property
    def count(self) -> int:
        """The number of matrices."""
        return self.batch_shape.numel()

    @property
    def methods(self) -> dict[str, int]:
        """How many matrices each method answered for."""
        return {self.method: self.count} if isinstance(self.method, str) else dict(Counter(self.method))

    @property
    def relative_error(self) -> Float[Tensor, "*batch k"]:
        """The errors as a share of the largest value of each matrix; zero where both are zero."""
        largest = self.values[..., :1]
        return torch.where(self.error == 0, 0.0, self.error / largest).nan_to_num(nan=math.inf, posinf=math.inf)

    def raise_on_failure(self) -> Spectrum:
        """The spectrum itself, or a `SpectrumError` that names the first matrix that failed and how many others did."""
        if self.failures:
            first, reason = next(iter(self.failures.items()))
            raise SpectrumError(
                f"{len(self.failures)} of {self.count} matrices have no spectrum, the first is number {first}: {reason}"
            )
        return self

    def __getitem__(self, index: Any) -> Spectrum:
        """Index the batch dimensions.

        >>> Product(torch.ones(3, 2, 2)).spectrum()[:2].count
        2
        """
        numbers = torch.arange(self.count, device="cpu").reshape(self.batch_shape)[_on_cpu(index)]
        chosen = numbers.flatten().tolist()
        method = self.method if isinstance(self.method, str) else _joined([self.method[number] for number in chosen])
        failures = {place: self.failures[number] for place, number in enumerate(chosen) if number in self.failures}
        k = self.values.shape[-1]
        flat = numbers.to(self.values.device)
        values, error = (part.reshape(-1, k)[flat] for part in (self.values, self.error))
        return Spectrum(values, method=method, error=error, failures=failures)

    def __len__(self) -> int:
        if not self.batch_shape:
            raise TypeError("the spectrum of a single matrix has no length: it has no batch dimension")
        return self.batch_shape[0]

    def __iter__(self) -> Iterator[Spectrum]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        batch = "x".join(map(str, self.batch_shape)) or "1"
        methods = ", ".join(name if count == self.count else f"{count} {name}" for name, count in self.methods.items())
        sound = self.relative_error[self.values.isfinite()]
        error = f"relative error up to {float(sound.amax()):.0e}" if sound.numel() else "no error bound"
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"Spectrum({batch} of {self.values.shape[-1]} values, {methods or 'no method'}, {error}{failed})"


@computes
def spectrum(product: Product, *, method: Method = "auto", tolerance: float = 1e-6, memory: int = MEMORY) -> Spectrum:
    """The singular values of every matrix of a stack, largest first, each with an absolute error bound.

    Let `N` be an upper bound of the norms of the two halves of the product, multiplied, after its inner columns have
    been equilibrated by powers of two; `u` the roundoff of the accumulation; `c` a constant of the sizes (`bounds.py`).

        gram32, gram64:  |s^2 - s_true^2| <= t = c u N^2 (+ the shift used),  so |s - s_true| <= min(sqrt(t), t / s)
        qr:              |s - s_true| <= c u N
        dense:           |s - s_true| <= c u | |A_1| ... |A_k| |_F
        precise:         |s - s_true| <= c u kappa s, with the condition kappa of the factors with scaled columns

    `auto` climbs from one to the next, matrix by matrix, until every error is at most `tolerance` times the largest
    value; what no method brings there keeps the best answer with its honest error.

    Arguments:
        product: any stack of matrices, chains, or single matrices.
        method: "auto", or one of the methods alone.
        tolerance: the error that will do, as a share of the largest value of each matrix.
        memory: how many bytes intermediate results may take.

    Returns:
        `product.max_rank` values for each matrix. A matrix with NaN or Inf in it, and a change that is smaller than the
        rounding of what it is a change of, is marked in `failures`; the others are not touched by it.

    >>> spectrum(Product(torch.diag(torch.tensor([3.0, 1.0])), torch.eye(2))).values
    tensor([3., 1.], dtype=torch.float64)
    """
    if method not in METHODS:
        raise UserError(f"there is no method {method!r}: give one of {', '.join(METHODS)}")
    if not tolerance >= 0:
        raise UserError(f"the tolerance is {tolerance}: give a share of the largest singular value, such as 1e-6")
    if memory <= 0:
        raise UserError(f"the memory is {memory} bytes: give a positive number of bytes, such as 2**30")
    found = climb(product.detach(), method=method, tolerance=tolerance, memory=memory)
    values, error, failures = found.values, found.error, found.failures
    for index, reason in _without_rank(product, values).items():
        values[index], error[index] = math.nan, math.inf
        failures.setdefault(index, reason)
    shape = (*product.batch_shape, product.max_rank)
    return Spectrum(values.reshape(shape), method=_joined(found.methods), error=error.reshape(shape), failures=failures)


def _without_rank(product: Product, values: Tensor) -> dict[int, str]:
    """The changes that are too small against their start to say anything about their rank."""
    if product.start is None:
        return {}
    size = torch.linalg.vector_norm(values, dim=-1)
    floor = product.start.floor * product.start.norm.to(size).expand(product.batch_shape).reshape(-1)
    lost = ((size < floor) | (size == 0)).nonzero().flatten().tolist()
    below = BELOW_FLOOR.format(floor=product.start.floor)
    return {index: UNCHANGED if size[index] == 0 else below for index in lost}


def _joined(methods: list[str]) -> str | tuple[str, ...]:
    return methods[0] if len(set(methods)) == 1 else tuple(methods)


def _on_cpu(index: Any) -> Any:
    """An index that is a tensor, or a tuple with tensors in it, where the numbers of the matrices are."""
    if isinstance(index, tuple):
        return tuple(_on_cpu(part) for part in index)
    return index.cpu() if isinstance(index, Tensor) else index
