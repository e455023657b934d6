"""The measures by name, each with its formula, its meaning and the way its error follows from the spectrum's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product import intervals, measures
from rankwise.product.product import Product
from rankwise.product.spectrum import Spectrum

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Measure:
    """A number that sums up a spectrum.

    Arguments:
        name: how it is asked for.
        title: how a table names it.
        formula: in the singular values `s_1 >= ... >= s_k`.
        meaning: one plain sentence.
        function: from a spectrum (or a product) to one number for each matrix.
        interval: from a spectrum to the least and the largest number that its errors allow.
        scales: whether the number grows with the matrix (a norm), rather than describing its shape.
    """

    name: str
    title: str = field(kw_only=True)
    formula: str = field(kw_only=True)
    meaning: str = field(kw_only=True)
    function: Callable[[Spectrum | Product], Tensor] = field(kw_only=True, repr=False)
    interval: Callable[[Spectrum], tuple[Tensor, Tensor]] = field(kw_only=True, repr=False)
    scales: bool = field(kw_only=True, default=False)

    def of(self, target: Spectrum | Product) -> Measured:
        """The number for every matrix, with its error and the method of the spectrum behind it."""
        if self.name == "frobenius_norm" and (norm := measures.norm_from_grams(target)) is not None:
            return Measured(norm.value, error=norm.error, method="gram64")
        spectrum = measures.spectrum_of(target)
        value = self.function(spectrum)
        lower, upper = self.interval(spectrum)
        error = torch.maximum(upper - value, value - lower)
        # Infinity is exact only as "at least this": it keeps an infinite error, as does a spectrum that failed.
        error = error.masked_fill(~value.isfinite(), torch.inf).clamp_min(0)
        return Measured(value, error=error, method=spectrum.method)


@dataclass(frozen=True)
class Measured:
    """A measure of every matrix of a stack, with an absolute error bound and the method behind it."""

    value: Float[Tensor, "*batch"]
    error: Float[Tensor, "*batch"] = field(kw_only=True)
    method: str | tuple[str, ...] = field(kw_only=True)


def measure(name: str, target: Spectrum | Product) -> Measured:
    """A measure by its name in `MEASURES`, with its error and method.

    >>> shape = measure("stable_rank", Product(torch.diag(torch.tensor([2.0, 1.0]))))
    >>> shape.value.item(), shape.error.item() < 1e-5
    (1.25, True)
    """
    return find_measure(name).of(target)


def find_measure(name: str) -> Measure:
    """The measure of a name, or one line with the names there are."""
    if name not in MEASURES:
        raise UserError(f"there is no measure {name!r}: choose from {', '.join(MEASURES)}")
    return MEASURES[name]


_ALL = (
    Measure(
        "stable_rank",
        title="stable rank",
        formula="sum s_i^2 / s_1^2",
        meaning="The energy of all directions, counted in units of the strongest one.",
        function=measures.stable_rank,
        interval=intervals.over_largest(2.0),
    ),
    Measure(
        "pseudo_rank",
        title="pseudo-rank",
        formula="least k with s_1 + ... + s_k >= 0.95 sum s_i, over the number of values",
        meaning="The fraction of directions that hold 95 % of the sum of singular values.",
        function=measures.pseudo_rank,
        interval=intervals.share_rank(0.95, 1.0, of_count=True),
    ),
    Measure(
        "energy_rank",
        title="energy rank",
        formula="least k with s_1^2 + ... + s_k^2 >= 0.95 sum s_i^2",
        meaning="The rank of the best approximation that keeps 95 % of the energy.",
        function=measures.energy_rank,
        interval=intervals.share_rank(0.95, 2.0),
    ),
    Measure(
        "effective_rank",
        title="effective rank",
        formula="exp(-sum p_i ln p_i), p_i = s_i / sum s",
        meaning="The number of equally strong directions that would be as spread out.",
        function=measures.effective_rank,
        interval=intervals.entropy,
    ),
    Measure(
        "participation_ratio",
        title="participation ratio",
        formula="(sum s_i^2)^2 / sum s_i^4",
        meaning="The number of directions that take part, the strong ones counting most.",
        function=measures.participation_ratio,
        interval=intervals.quotient(2.0),
    ),
    Measure(
        "nuclear_norm",
        title="nuclear norm",
        formula="sum s_i",
        meaning="What weight decay on balanced factors charges for the product.",
        function=measures.nuclear_norm,
        interval=intervals.monotone(lambda values: values.sum(-1)),
        scales=True,
    ),
    Measure(
        "frobenius_norm",
        title="Frobenius norm",
        formula="sqrt(sum s_i^2)",
        meaning="The size of the matrix, entry by entry.",
        function=measures.frobenius_norm,
        interval=intervals.monotone(measures.length),
        scales=True,
    ),
    Measure(
        "operator_norm",
        title="operator norm",
        formula="s_1",
        meaning="The most that the matrix can stretch a vector.",
        function=measures.operator_norm,
        interval=intervals.monotone(lambda values: values[..., 0]),
        scales=True,
    ),
    Measure(
        "nuclear_ratio",
        title="nuclear / operator",
        formula="sum s_i / s_1",
        meaning="The sum of all directions, counted in units of the strongest one.",
        function=measures.nuclear_ratio,
        interval=intervals.over_largest(1.0),
    ),
    Measure(
        "nuclear_frobenius_ratio",
        title="nuclear / Frobenius",
        formula="(sum s_i)^2 / sum s_i^2",
        meaning="How far the sum of singular values exceeds that of a single direction of the same energy.",
        function=measures.nuclear_frobenius_ratio,
        interval=intervals.quotient(1.0),
    ),
    Measure(
        "numerical_rank",
        title="numerical rank",
        formula="#{i : s_i > max(k u s_1, error_i)}, u the roundoff of float64",
        meaning="The number of directions that are certainly not rounding.",
        function=lambda target: measures.numerical_rank(measures.spectrum_of(target)),
        interval=intervals.count_above,
    ),
    Measure(
        "condition",
        title="condition",
        formula="s_1 / s_k",
        meaning="The strongest direction over the weakest.",
        function=measures.condition,
        interval=intervals.largest_over_smallest,
    ),
)

MEASURES: Mapping[str, Measure] = MappingProxyType({entry.name: entry for entry in _ALL})
