"""What random factors of the same widths give: the null against which a spectrum or a balance is read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.bounds import frobenius_norm
from rankwise.product.measures import length
from rankwise.product.product import Product
from rankwise.product.spectrum import Spectrum

if TYPE_CHECKING:
    from jaxtyping import Float

# The 99.9 % point of the Tracy-Widom law of real matrices, which the largest singular value of large random products
# follows, lies (3.2724 + 1.2065) / 1.2680 of its standard deviations above its mean.
EDGE_DEVIATIONS = 3.53
# Spectra of more values than this are drawn at proportionally smaller widths and stretched: the law depends on the
# ratios of the widths alone, up to one part in this number.
LARGEST_DRAWN = 256


@dataclass(frozen=True)
class NullValue:
    """The mean of a number over random products, and its standard deviation from one random product to the next."""

    mean: float
    spread: float = field(kw_only=True)


@dataclass(frozen=True)
class NullModel:
    """Singular values and balance of products of independent Gaussian factors, all entries of mean 0 and variance 1.

    Arguments:
        widths: the dimensions along the chain, `(m, r, ..., n)`; two for a single matrix.
        values: the singular values of every draw, `[draws, min(widths)]`, largest first.
        relative_gaps: for every draw and every junction of neighbouring factors, the gap of `balance` over its
            half-sum.
        relative_imbalances: the same for `|A^T A - B B^T|_F` over the root mean square of the two Grams' norms.
    """

    widths: tuple[int, ...]
    values: Float[Tensor, "draws k"] = field(kw_only=True, repr=False)
    relative_gaps: Float[Tensor, "draws junctions"] = field(kw_only=True, repr=False)
    relative_imbalances: Float[Tensor, "draws junctions"] = field(kw_only=True, repr=False)

    @property
    def draws(self) -> int:
        """The number of random products behind every number."""
        return len(self.values)

    @property
    def spectrum(self) -> Spectrum:
        """The drawn singular values as a stack of spectra, to take measures of."""
        return Spectrum(self.values, method="null", error=torch.zeros_like(self.values))

    @property
    def mean(self) -> Float[Tensor, " k"]:
        """The mean of every singular value, by rank."""
        return self.values.mean(0)

    @property
    def spread(self) -> Float[Tensor, " k"]:
        """The standard deviation of every singular value, by rank."""
        return self.values.std(0)

    @property
    def edge(self) -> float:
        """The value that the largest singular value exceeds once in a thousand random products.

        `mean + 3.53 spread` of the drawn largest values (Tracy-Widom), and never below the largest one drawn.
        """
        largest = self.values[:, 0]
        return max((largest.mean() + EDGE_DEVIATIONS * largest.std()).item(), largest.max().item())

    def quantile(self, level: float) -> Float[Tensor, " k"]:
        """The quantile of every singular value over the draws, by rank."""
        return self.values.quantile(level, dim=0)

    def value(self, measure: str) -> NullValue:
        """The null value of a measure, by its name in `MEASURES`.

        >>> null_model((768, 64, 768)).value("stable_rank").mean / 64 > 0.45
        True
        """
        from rankwise.product.catalogue import find_measure

        return _summary(find_measure(measure).function(self.spectrum))

    def relative_gap(self, junction: int = 0) -> NullValue:
        """The null value of `Balance.relative`, near `r / 4 m` for equal outer widths."""
        return _summary(self.relative_gaps[:, junction])

    def relative_imbalance(self, junction: int = 0) -> NullValue:
        """The null value of `Balance.relative_imbalance`, near `sqrt(2 r / m)` for equal outer widths."""
        return _summary(self.relative_imbalances[:, junction])

    def scaled(self, target: Product | Spectrum) -> ScaledNull:
        """The null at the scale of a product: `prod_l |A_l|_F / sqrt(rows_l columns_l)`, from its factors' norms.

        A spectrum has no factors: its null gets the same Frobenius norm, which does not depend on the gauge.
        """
        if isinstance(target, Spectrum):
            return ScaledNull(self, scale=length(target.values) / length(self.values).mean().to(target.values.device))
        if target.widths != self.widths:
            raise UserError(f"a null model for widths {self.widths} was scaled to {target!r}: use null_model(p.widths)")
        if target.is_sum:
            raise UserError(
                "a sum or a change has no factors of its own to take a scale from: give its spectrum instead"
            )
        scale = torch.ones(target.batch_shape, dtype=torch.float64, device=target.device)
        for factor in target.factors:
            rows, columns = factor.shape[-2:]
            scale = scale * _factor_norm(factor.detach()) / (rows * columns) ** 0.5
        return ScaledNull(self, scale=scale)


@dataclass(frozen=True)
class ScaledNull:
    """A null model with a scale for every matrix of a batch."""

    model: NullModel
    scale: Float[Tensor, "*batch"] = field(kw_only=True)

    @property
    def mean(self) -> Float[Tensor, "*batch k"]:
        """The mean of every singular value at this scale."""
        return self.scale[..., None] * self.model.mean.to(self.scale.device)

    @property
    def spread(self) -> Float[Tensor, "*batch k"]:
        """The standard deviation of every singular value at this scale."""
        return self.scale[..., None] * self.model.spread.to(self.scale.device)

    @property
    def edge(self) -> Float[Tensor, "*batch"]:
        """The value that the largest singular value of a random product exceeds once in a thousand."""
        return self.scale * self.model.edge


def null_model(widths: Sequence[int], *, draws: int = 64, seed: int = 0) -> NullModel:
    """Draw the null model for the widths of a product, or the two dimensions of a matrix; the same call is cached.

    A Gaussian factor enters through the triangle of its QR decomposition alone (Bartlett: independent normals beside a
    chi-distributed diagonal), so that one draw costs `min(widths)^3`. The global random state is neither read nor
    moved. Above 256 singular values the widths are drawn to scale and stretched; spreads are then overestimated, never
    under.

    Arguments:
        widths: `(m, r, ..., n)`, as `Product.widths`.
        draws: how many random products.
        seed: the same seed gives the same model.

    >>> null = null_model((768, 64, 768))
    >>> round(null.relative_gap().mean, 2), round(null.relative_imbalance().mean, 1)
    (0.02, 0.4)
    """
    widths = tuple(int(width) for width in widths)
    if len(widths) < 2 or min(widths) < 1:
        raise UserError(f"a null model needs two or more positive widths (m, r, ..., n), got {widths}")
    if draws < 2:
        raise UserError(f"a null model needs at least two draws to have a spread, got {draws}")
    return _drawn(widths, draws, seed)


@lru_cache(maxsize=1024)
def _drawn(widths: tuple[int, ...], draws: int, seed: int) -> NullModel:
    source = _Source(draws, seed)
    junctions = [source.pair(*_shrunk(widths[start : start + 3])) for start in range(len(widths) - 2)]
    small = _shrunk(widths)
    values = junctions[0].values if len(widths) == 3 else source.chain(small)
    shrink = max(1.0, min(widths) / LARGEST_DRAWN)
    if shrink > 1:
        stretched = torch.nn.functional.interpolate(values[:, None], min(widths), mode="linear", align_corners=False)
        values = stretched[:, 0] * shrink ** ((len(widths) - 1) / 2)
    empty = values.new_empty(draws, 0)
    return NullModel(
        widths,
        values=values,
        relative_gaps=torch.stack([pair.gap for pair in junctions], -1) if junctions else empty,
        relative_imbalances=torch.stack([pair.imbalance for pair in junctions], -1) if junctions else empty,
    )


def _shrunk(widths: Sequence[int]) -> tuple[int, ...]:
    """The widths to scale, with no more than `LARGEST_DRAWN` singular values."""
    shrink = max(1.0, min(widths) / LARGEST_DRAWN)
    return tuple(round(width / shrink) for width in widths)


class _Pair(NamedTuple):
    """Random products of two factors: singular values, relative gap and relative imbalance of every draw."""

    values: Tensor
    gap: Tensor
    imbalance: Tensor


class _Source:
    """Independent random triangles from generators of its own."""

    def __init__(self, draws: int, seed: int) -> None:
        self.draws = draws
        self.normal = torch.Generator().manual_seed(seed)
        self.gamma = random.Random(seed)

    def triangle(self, rows: int, columns: int) -> Float[Tensor, "draws k columns"]:
        """The triangle `R` of the QR decomposition of a Gaussian `[rows, columns]`, `k` its smaller dimension."""
        size = min(rows, columns)
        shape = (self.draws, size, columns)
        triangle = torch.randn(shape, generator=self.normal, dtype=torch.float64, device="cpu").triu(1)
        squares = [[self.gamma.gammavariate((rows - i) / 2, 2.0) for i in range(size)] for _ in range(self.draws)]
        triangle.diagonal(dim1=-2, dim2=-1).copy_(torch.tensor(squares, dtype=torch.float64, device="cpu").sqrt())
        return triangle

    def pair(self, m: int, r: int, n: int) -> _Pair:
        """Random `[m, r] @ [r, n]`."""
        if r > min(m, n):
            return self.wide_pair(m, r, n)
        left, right = self.triangle(m, r), self.triangle(n, r)
        values = torch.linalg.svdvals(left @ right.mT)
        squares = [factor.square().sum((-2, -1)) for factor in (left, right)]
        grams = [(factor @ factor.mT).square().sum((-2, -1)) for factor in (left, right)]
        return _balance(values, squares, grams)

    def wide_pair(self, m: int, r: int, n: int) -> _Pair:
        """The same with an inner width that is not the narrowest, whose Grams would be larger than the product.

        The factors' own norms hardly fluctuate: they take their means, `E |A|^2 = m r` and for the Gram (Wishart)
        `E |A A^T|_F^2 = m r (m + r + 1)`.
        """
        values = self.chain((m, r, n))
        sizes = (m, n)
        squares = [values.new_full((self.draws,), float(size * r)) for size in sizes]
        grams = [values.new_full((self.draws,), float(size * r * (size + r + 1))) for size in sizes]
        return _balance(values, squares, grams)

    def chain(self, widths: tuple[int, ...]) -> Tensor:
        """Singular values of a product of any depth.

        Rotations pass through Gaussian factors, so seen from the narrowest width every factor is a square triangle
        whose degrees of freedom are its far width.
        """
        place = widths.index(min(widths))
        size = widths[place]
        core = torch.eye(size, dtype=torch.float64, device="cpu").expand(self.draws, size, size)
        for width in widths[:place]:
            core = core @ self.triangle(width, size)
        for width in widths[place + 1 :]:
            core = core @ self.triangle(width, size).mT
        return torch.linalg.svdvals(core)


def _balance(values: Tensor, squares: list[Tensor], grams: list[Tensor]) -> _Pair:
    """From singular values and the squared norms of factors and Grams: `|D|^2 = |A^T A|^2 + |B B^T|^2 - 2 |A B|^2`."""
    half_sum = (squares[0] + squares[1]) / 2
    difference = grams[0] + grams[1] - 2 * values.square().sum(-1)
    imbalance = (difference.clamp_min(0) / ((grams[0] + grams[1]) / 2)).sqrt()
    return _Pair(values, 1 - values.sum(-1) / half_sum, imbalance)


def _factor_norm(factor: Tensor) -> Tensor:
    """The Frobenius norm in float64, at whatever scale the entries are; squares of shorter types stay inside it."""
    if factor.dtype == torch.float64:
        return frobenius_norm(factor)
    return torch.linalg.matrix_norm(factor, dtype=torch.float64)


def _summary(values: Tensor) -> NullValue:
    return NullValue(values.mean().item(), spread=values.std().item())
