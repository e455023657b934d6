"""From the cheapest method to the surest, matrix by matrix, until the error is small enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from rankwise.product.bounds import UNIT, accumulation, blocked
from rankwise.product.chain import compact, contracted
from rankwise.product.dense import dense_values, multiplication_error
from rankwise.product.estimate import Estimate
from rankwise.product.gram_values import gram_values
from rankwise.product.precise import precise_values
from rankwise.product.product import Product
from rankwise.product.scaling import normalized, scaled, scaled_error
from rankwise.product.triangular import qr_values

Method = Literal["auto", "gram32", "gram64", "qr", "dense", "precise"]
METHODS: tuple[str, ...] = get_args(Method)

LADDER = ("gram32", "gram64", "qr", "dense")

# The roundoff of a float32 accumulation, by how much torch may shorten its inputs (both of them).
FLOAT32_UNITS = {"highest": 2.0**-24, "high": 2.0**-10, "medium": 2.0**-7}

NOT_FINITE = "a factor holds NaN or Inf"
NO_BOUND = "{method} could not bound it: the decomposition did not converge, or its scale is outside the method's range"


@dataclass(frozen=True)
class Climbed:
    """The flattened matrices of a product: values, errors, the method of each and why some failed."""

    values: Tensor
    error: Tensor
    methods: list[str]
    failures: dict[int, str]


def climb(product: Product, *, method: str, tolerance: float, memory: int) -> Climbed:
    """The best estimate of each matrix: of one method, or of the first one of the ladder that meets the tolerance.

    Arguments:
        product: any stack.
        method: one of `METHODS`.
        tolerance: the largest error that `auto` accepts, as a share of the largest singular value.
        memory: how many bytes the copies and intermediate results of one step may take.
    """
    product, exponent = normalized(product)
    values = torch.full((product.count, product.max_rank), torch.nan, dtype=torch.float64, device=product.device)
    error = torch.full_like(values, torch.inf)
    rungs = LADDER if method == "auto" else (method,)
    methods = [rungs[-1]] * product.count
    pending = torch.arange(product.count, device=product.device)
    for rung in rungs:
        best = Estimate(values[pending], error[pending])
        tried = pending[_can_help(rung, product, pending, best, tolerance)] if method == "auto" else pending
        if not len(tried):
            continue
        found = _run(rung, product, tried, tolerance, memory)
        better = found.worst < Estimate(values[tried], error[tried]).worst
        chosen = tried[better]
        values[chosen], error[chosen] = found.values[better], found.error[better]
        for index in chosen.tolist():
            methods[index] = rung
        pending = pending[~Estimate(values[pending], error[pending]).within(tolerance)]
    if exponent is not None:
        values, error = scaled(values, exponent.reshape(-1)), scaled_error(error, exponent.reshape(-1))
    return Climbed(values, error, methods, _failures(product, Estimate(values, error), methods))


def pick(product: Product, indices: Tensor) -> Product:
    """The matrices with these numbers, counted row by row, as a stack with one batch axis.

    All of them in order are the product itself, with what its matrices share still shared.
    """
    if len(indices) == product.count:
        return product
    batch = product.batch_shape
    position = torch.unravel_index(indices, batch)
    factors = []
    for factor in map(compact, product.factors):
        axes = factor.shape[:-2]
        own = position[len(batch) - len(axes) :]
        if axes.numel() == 1:
            factors.append(factor.reshape(factor.shape[-2:]))
        else:  # an axis of size one is shared: everybody finds it at zero
            factors.append(factor[tuple(where * (size > 1) for where, size in zip(own, axes, strict=True))])
    return Product(*factors)


def split(product: Product, limit: int) -> Iterator[Product]:
    """Cut a stack along its leading axes into stacks of at most `limit` matrices, in row-major order."""
    axis = next((axis for axis, size in enumerate(product.batch_shape) if size > 1), None)
    if product.count <= limit or axis is None:
        yield product
        return
    size = product.batch_shape[axis]
    step = max(1, limit // (product.count // size))
    from_end = axis - len(product.batch_shape) - 2
    for start in range(0, size, step):
        count = min(step, size - start)
        factors = [
            factor.narrow(from_end, start, count) if -from_end <= factor.ndim and factor.shape[from_end] > 1 else factor
            for factor in product.factors
        ]
        yield from split(Product(*factors), limit)


def float32_unit() -> float:
    """The roundoff of float32 Grams: that of shorter types where torch was allowed to let them stand in."""
    return FLOAT32_UNITS[torch.get_float32_matmul_precision()]


def _run(rung: str, product: Product, pending: Tensor, tolerance: float, memory: int) -> Estimate:
    step = METHOD_STEPS[rung]
    limit = max(1, memory // step.bytes(product))
    # Where matrices share a factor, computing a few too many is cheaper than copying it for each.
    shared = any(compact(factor).shape[:-2].numel() < product.count for factor in product.factors)
    whole = len(pending) == product.count or (shared and 2 * len(pending) > product.count)
    stack = product if whole else pick(product, pending)
    estimates = [step.compute(part, tolerance) for part in split(stack, limit)]
    values, errors = (
        torch.cat([getattr(estimate, name).reshape(-1, product.max_rank) for estimate in estimates])
        for name in ("values", "error")
    )
    return Estimate(values[pending], errors[pending]) if whole else Estimate(values, errors)


@dataclass(frozen=True)
class Step:
    """One method: how to compute it, and about how many bytes it needs for each matrix."""

    compute: Callable[[Product, float], Estimate]
    bytes: Callable[[Product], int]


def _small_bytes(product: Product) -> int:
    inner = max(product.widths[1:-1], default=product.max_rank)
    return 8 * (10 * product.max_rank**2 + (4 * inner**2 if product.depth > 2 else 0))


def _factor_bytes(product: Product) -> int:
    return 24 * sum(rows * columns for rows, columns in _sizes(product)) + _small_bytes(product)


def _dense_bytes(product: Product) -> int:
    return 32 * product.shape[-2] * product.shape[-1] + _factor_bytes(product)


def _sizes(product: Product) -> list[torch.Size]:
    return [factor.shape[-2:] for factor in product.factors]


METHOD_STEPS = {
    "gram32": Step(
        lambda product, tolerance: gram_values(product, torch.float32, tolerance, float32_unit()), _small_bytes
    ),
    "gram64": Step(lambda product, tolerance: gram_values(product, torch.float64, tolerance, UNIT), _small_bytes),
    "qr": Step(lambda product, tolerance: qr_values(product), _factor_bytes),
    "dense": Step(lambda product, tolerance: dense_values(product), _dense_bytes),
    "precise": Step(lambda product, tolerance: precise_values(product), _factor_bytes),
}


def _can_help(rung: str, product: Product, pending: Tensor, so_far: Estimate, tolerance: float) -> Tensor:
    """Which matrices a rung of the ladder could bring within the tolerance; the surest rung but one is always tried."""
    if rung == "gram32":
        shorter = product.dtype != torch.float64 and len(contracted(_outlines(product))) == product.depth
        longest = max(product.widths[0], product.widths[-1])
        worth = shorter and tolerance >= blocked(longest) * float32_unit()
        return torch.full_like(pending, worth, dtype=torch.bool)
    if rung != "dense":
        return torch.ones_like(pending, dtype=torch.bool)
    # What QR could not even read, multiplying out cannot either.
    worth = so_far.worst.isfinite()
    rows, columns = product.shape[-2:]
    if accumulation(rows * columns) * UNIT > tolerance or not bool(worth.any()):
        return torch.zeros_like(worth)
    floor = multiplication_error(pick(product, pending)).reshape(-1)
    return worth & (floor <= tolerance * so_far.values.amax(-1))


def _outlines(product: Product) -> list[Tensor]:
    return [factor.to("meta") for factor in product.factors]


def _failures(product: Product, found: Estimate, methods: list[str]) -> dict[int, str]:
    """Mark what has no bound, in place, and say why."""
    lost = (~found.worst.isfinite()).nonzero().flatten()
    if not len(lost):
        return {}
    found.values[lost], found.error[lost] = torch.nan, torch.inf
    finite = torch.ones(len(lost), dtype=torch.bool, device=product.device)
    for factor in pick(product, lost).factors:
        sound = factor.isfinite().all(-1).all(-1)
        finite &= sound.expand(product.batch_shape).reshape(-1) if len(lost) == product.count else sound
    return {
        index: NO_BOUND.format(method=methods[index]) if sound else NOT_FINITE
        for index, sound in zip(lost.tolist(), finite.tolist(), strict=True)
    }
