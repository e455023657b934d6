"""From error bounds of singular values to bounds of the numbers made of them: `[lower, upper]` for every measure.

All bounds follow from `|s_i - value_i| <= error_i` alone, and hold for any true values within them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.product.measures import default_tolerance, first_reaching, relative
from rankwise.product.spectrum import Spectrum

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float

    Interval = tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]


def ends(spectrum: Spectrum) -> tuple[Tensor, Tensor]:
    """The least and the largest singular values that the errors allow."""
    return (spectrum.values - spectrum.error).clamp_min(0), spectrum.values + spectrum.error


def monotone(function: Callable[[Tensor], Tensor]) -> Callable[[Spectrum], Interval]:
    """For a function that rises with every value: its values at the two ends."""
    return lambda spectrum: (function(ends(spectrum)[0]), function(ends(spectrum)[1]))


def over_largest(power: float) -> Callable[[Spectrum], Interval]:
    """For `sum (s_i / s_1)^power`, which rises with every value but the first and falls with that.

    Beyond the number of values it cannot go, and a nonzero matrix has at least 1.
    """

    def interval(spectrum: Spectrum) -> Interval:
        low, high = ends(spectrum)
        lower = 1 + (low[..., 1:] / high[..., :1]).pow(power).sum(-1)
        upper = 1 + (high[..., 1:] / low[..., :1]).pow(power).sum(-1)
        return _clamped(spectrum, lower, upper)

    return interval


def quotient(power: float) -> Callable[[Spectrum], Interval]:
    """For `(sum s_i^power)^2 / sum s_i^(2 power)`: numerator and denominator each at their own worst."""

    def interval(spectrum: Spectrum) -> Interval:
        top = spectrum.values[..., :1]
        scale = torch.where(top > 0, top, 1.0)
        low, high = ((end / scale).pow(power) for end in ends(spectrum))
        lower = low.sum(-1).square() / high.square().sum(-1)
        upper = high.sum(-1).square() / low.square().sum(-1)
        return _clamped(spectrum, lower, upper)

    return interval


def entropy(spectrum: Spectrum) -> Interval:
    """For the effective rank, by the continuity of entropy (Fannes and Audenaert).

    Shares of the sum move by at most `d = sum error / sum s` in total variation, hence the entropy by at most
    `d ln(k - 1) - d ln d - (1 - d) ln(1 - d)` as long as `d <= 1 - 1/k`.
    """
    values = relative(spectrum.values)
    count = values.shape[-1]
    total = spectrum.values.sum(-1)
    distance = spectrum.error.sum(-1) / torch.where(total > 0, total, 1.0)
    fractions = values / torch.where(total > 0, values.sum(-1), 1.0)[..., None]
    value = -torch.special.xlogy(fractions, fractions).sum(-1)
    bounded = distance.clamp(0.0, 1 - 1 / count)
    rest = 1 - bounded
    spread = -torch.special.xlogy(bounded, bounded) - torch.special.xlogy(rest, rest)
    if count > 1:
        spread = spread + bounded * torch.log(torch.tensor(count - 1.0, dtype=value.dtype, device=value.device))
    known = distance <= 1 - 1 / count
    lower = torch.where(known, (value - spread).exp(), 0.0)
    upper = torch.where(known, (value + spread).exp(), float(count))
    return _clamped(spectrum, lower, upper)


def share_rank(share: float, power: float, *, of_count: bool = False) -> Callable[[Spectrum], Interval]:
    """For the least `k` that holds a share of `sum s_i^power`: the leading values at one end, the others at the other.

    The share of the first `k` rises with each of them and falls with the others.
    """

    def interval(spectrum: Spectrum) -> Interval:
        lowest, highest = ends(spectrum)
        top = spectrum.values[..., :1]
        scale = torch.where(top > 0, top, 1.0)
        low, high = ((end / scale).pow(power) for end in (lowest, highest))
        least, most = (
            first_reaching(_split_shares(leading, others), share) for leading, others in ((high, low), (low, high))
        )
        # Where all values may be zero, the rank may be 0, and is anything up to their count unless all surely are zero.
        nonzero = lowest[..., 0] > 0
        count = float(low.shape[-1])
        least = torch.where(nonzero, least, 0.0)
        most = torch.where(nonzero | (highest[..., 0] == 0), most, count)
        divisor = low.shape[-1] if of_count else 1
        return least / divisor, most / divisor

    return interval


def count_above(spectrum: Spectrum) -> Interval:
    """For the numerical rank: the values surely above the threshold, and those that may be."""
    low, high = ends(spectrum)
    tolerance = default_tolerance(spectrum)
    lower = (low > tolerance * high[..., :1]).sum(-1)
    upper = (high > tolerance * low[..., :1]).sum(-1)
    return lower.to(low.dtype), upper.to(low.dtype)


def largest_over_smallest(spectrum: Spectrum) -> Interval:
    """For the condition: infinite above as soon as the smallest value may be zero."""
    low, high = ends(spectrum)
    lower = low[..., 0] / high[..., -1]
    upper = torch.where(low[..., -1] > 0, high[..., 0] / low[..., -1], torch.inf)
    return lower, upper


def _split_shares(leading: Tensor, others: Tensor) -> Tensor:
    """`sum_{i<=k} leading / (sum_{i<=k} leading + sum_{i>k} others)` for every k."""
    head = leading.cumsum(-1)
    tail = others.flip(-1).cumsum(-1).flip(-1) - others
    whole = head + tail
    return head / torch.where(whole > 0, whole, 1.0)


def _clamped(spectrum: Spectrum, lower: Tensor, upper: Tensor) -> Interval:
    """Between 1 and the number of values for a matrix that is not zero; from 0 where it may be; 0 where it is."""
    count = float(spectrum.values.shape[-1])
    low, high = (end[..., 0] for end in ends(spectrum))
    floor = (low > 0).to(lower.dtype)
    ceiling = torch.where(high == 0, 0.0, count)
    lower = torch.where(low > 0, lower, 0.0)
    upper = torch.where(low > 0, upper, ceiling)
    return torch.maximum(lower.nan_to_num(0.0), floor), torch.minimum(upper.nan_to_num(count), ceiling)
