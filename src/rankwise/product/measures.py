"""Numbers that sum up a spectrum: how large a matrix is, and over how many directions it is spread.

Every function takes a `Spectrum`, or a `Product` whose spectrum it computes, and returns one number for each matrix of
the batch: NaN where the spectrum failed. A zero matrix has rank, ratios and norms of 0 and an infinite condition. The
functions observe, outside of autograd; to train with a norm see `frobenius_penalty` and `nuclear_penalty`. For the same
numbers with an error and a method, see `measure`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.norms import Norm, frobenius
from rankwise.product.product import Product
from rankwise.product.spectrum import Spectrum

if TYPE_CHECKING:
    from jaxtyping import Float

# A running share that misses its threshold by this much has reached it: the miss is rounding.
SHARE_SLACK = 1e-12
# Grams answer for a norm that they hold to this share; a gauge that is worse than that is left to the spectrum.
GRAM_TOLERANCE = 1e-9


def stable_rank(target: Spectrum | Product) -> Float[Tensor, "*batch"]:
    """`sum s_i^2 / s_1^2`: the energy in units of the largest direction's, between 1 and the rank.

    >>> stable_rank(Product(torch.diag(torch.tensor([2.0, 1.0])))).item()
    1.25
    """
    return relative(spectrum_of(target).values).square().sum(-1)


def pseudo_rank(
    target: Spectrum | Product, threshold: float = 0.95, *, of: int | None = None, interpolated: bool = False
) -> Float[Tensor, "*batch"]:
    """`k / n`, with `k` the least number of singular values that hold a share of their *sum*.

    Arguments:
        target: a spectrum or a product.
        threshold: the share of the sum, above 0 and at most 1.
        of: the denominator `n`; by default the number of singular values, so that the result lies between 1/n and 1.
        interpolated: let the last value count in part, which takes away the steps of 1/n.

    >>> pseudo_rank(Product(torch.diag(torch.tensor([6.0, 3.0, 1.0, 0.0]))), 0.9).item()
    0.5
    """
    values = spectrum_of(target).values
    if of is not None and of < 1:
        raise UserError(f"the denominator of a pseudo-rank must be a positive number of directions, got of={of}")
    count = first_reaching(shares(values), checked_share(threshold), interpolated=interpolated)
    return count / (values.shape[-1] if of is None else of)


def energy_rank(target: Spectrum | Product, share: float = 0.95) -> Float[Tensor, "*batch"]:
    """The least `k` with `sum_{i<=k} s_i^2 >= share * sum s_i^2`: the rank that keeps a share of the energy.

    >>> energy_rank(Product(torch.diag(torch.tensor([3.0, 1.0]))), 0.9).item()
    1.0
    """
    return first_reaching(shares(relative(spectrum_of(target).values).square()), checked_share(share))


def effective_rank(target: Spectrum | Product) -> Float[Tensor, "*batch"]:
    """`exp(-sum p_i ln p_i)`, `p_i = s_i / sum s`: the number of equal values of the same entropy (Roy, Vetterli 2007).

    >>> round(effective_rank(Product(torch.eye(4))).item(), 9)
    4.0
    """
    values = relative(spectrum_of(target).values)
    total = values.sum(-1, keepdim=True)
    shares_of_sum = values / torch.where(total > 0, total, 1.0)
    rank = (-torch.special.xlogy(shares_of_sum, shares_of_sum)).sum(-1).exp()
    return torch.where(total[..., 0] == 0, 0.0, rank)


def participation_ratio(target: Spectrum | Product) -> Float[Tensor, "*batch"]:
    """`(sum s_i^2)^2 / sum s_i^4`: the number of equal energies with the same second moment.

    >>> participation_ratio(Product(torch.eye(4))).item()
    4.0
    """
    energies = relative(spectrum_of(target).values).square()
    return _ratio(energies.sum(-1).square(), energies.square().sum(-1))


def nuclear_norm(target: Spectrum | Product) -> Float[Tensor, "*batch"]:
    """`sum s_i`, observed; `nuclear_penalty` is the same number to train with.

    >>> nuclear_norm(Product(torch.diag(torch.tensor([2.0, -1.0])))).item()
    3.0
    """
    return spectrum_of(target).values.sum(-1)


def frobenius_norm(target: Spectrum | Product) -> Float[Tensor, "*batch"]:
    """`sqrt(sum s_i^2)`, for a product straight from the Grams of its factors where they hold it to 1e-9.

    >>> frobenius_norm(Product(torch.diag(torch.tensor([3.0, 4.0])))).item()
    5.0
    """
    norm = norm_from_grams(target)
    return length(spectrum_of(target).values) if norm is None else norm.value


def operator_norm(target: Spectrum | Product) -> Float[Tensor, "*batch"]:
    """`s_1`, the largest stretch.

    >>> operator_norm(Product(torch.diag(torch.tensor([3.0, 4.0])))).item()
    4.0
    """
    return spectrum_of(target).values[..., 0]


def schatten(target: Spectrum | Product, p: float) -> Float[Tensor, "*batch"]:
    """`(sum s_i^p)^(1/p)`: 1 the nuclear, 2 the Frobenius, infinity the operator norm; below 1 a quasi-norm.

    >>> round(schatten(Product(torch.eye(4)), 0.5).item(), 9)
    16.0
    """
    if not p > 0:
        raise UserError(f"a Schatten norm needs p > 0, got {p}: for the number of nonzero values see numerical_rank")
    values = spectrum_of(target).values
    return values[..., 0] * relative(values).pow(p).sum(-1).pow(1 / p) if p != float("inf") else values[..., 0]


def nuclear_ratio(target: Spectrum | Product) -> Float[Tensor, "*batch"]:
    """`sum s_i / s_1`: the nuclear norm over the operator norm, between 1 and the rank.

    >>> nuclear_ratio(Product(torch.diag(torch.tensor([2.0, 1.0])))).item()
    1.5
    """
    return relative(spectrum_of(target).values).sum(-1)


def nuclear_frobenius_ratio(target: Spectrum | Product) -> Float[Tensor, "*batch"]:
    """`(sum s_i)^2 / sum s_i^2`: the squared nuclear over the squared Frobenius norm, between 1 and the rank.

    >>> nuclear_frobenius_ratio(Product(torch.diag(torch.tensor([2.0, 1.0])))).item()
    1.8
    """
    values = relative(spectrum_of(target).values)
    return _ratio(values.sum(-1).square(), values.square().sum(-1))


def numerical_rank(target: Spectrum | Product, *, tolerance: float | None = None) -> Float[Tensor, "*batch"]:
    """The number of singular values that are certainly not rounding.

    `#{i : s_i > max(tolerance * s_1, error_i)}`: a value below its own error bound does not count, whatever the
    tolerance.

    Arguments:
        target: a spectrum or a product.
        tolerance: relative to the largest value; by default `max(m, n)` float64 roundoffs for a product, and `k` for a
            spectrum, which does not know `m` and `n`. Stored entries are taken as exact, in whatever type they are.

    >>> numerical_rank(Product(torch.ones(3, 3))).item()
    1.0
    """
    spectrum = spectrum_of(target)
    bound = (default_tolerance(target) if tolerance is None else tolerance) * spectrum.values[..., :1]
    count = (spectrum.values > torch.maximum(bound, spectrum.error)).sum(-1).to(spectrum.values.dtype)
    return torch.where(spectrum.values[..., 0].isnan(), torch.nan, count)


def condition(target: Spectrum | Product) -> Float[Tensor, "*batch"]:
    """`s_1 / s_k`, the largest over the smallest of the values that the widths allow; infinite where that is zero.

    >>> condition(Product(torch.diag(torch.tensor([2.0, 1.0])))).item()
    2.0
    """
    values = spectrum_of(target).values
    return torch.where(values[..., -1] == 0, torch.inf, values[..., 0] / values[..., -1])


def norm_from_grams(target: Spectrum | Product) -> Norm | None:
    """The Frobenius norm of a product where its Grams hold it to 1e-9; a change has a norm only above its floor."""
    if not isinstance(target, Product) or target.start is not None:
        return None
    norm = frobenius(target)
    # Comparisons with NaN are false: a matrix that is not finite keeps its NaN, and does not send the rest away.
    return None if bool((norm.error > GRAM_TOLERANCE * norm.value).any()) else norm


def spectrum_of(target: Spectrum | Product) -> Spectrum:
    """The spectrum itself, or that of the product."""
    if isinstance(target, Spectrum):
        return target
    if isinstance(target, Product):
        return target.spectrum()
    raise UserError(
        f"a measure takes a Spectrum or a Product, got {type(target).__name__}: wrap a tensor in Product(…)"
    )


def default_tolerance(target: Spectrum | Product) -> float:
    """The relative size below which `numerical_rank` takes a value for rounding."""
    size = max(target.shape[-2:]) if isinstance(target, Product) else target.values.shape[-1]
    return size * torch.finfo(torch.float64).eps


def relative(values: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch k"]:
    """The values over the largest, so that no square of them under- or overflows; zeros for a zero matrix."""
    top = values[..., :1]
    return values / torch.where(top > 0, top, 1.0)


def length(values: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch"]:
    """The root of the sum of squares, none of which under- or overflows."""
    return values[..., 0] * torch.linalg.vector_norm(relative(values), dim=-1)


def shares(weights: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch k"]:
    """The running sums over the whole sum; zeros for a zero matrix."""
    running = relative(weights).cumsum(-1)
    return running / torch.where(running[..., -1:] > 0, running[..., -1:], 1.0)


def first_reaching(
    running: Float[Tensor, "*batch k"], share: float, *, interpolated: bool = False
) -> Float[Tensor, "*batch"]:
    """The least count at which running shares reach a share: 0 where they never do, NaN where they are NaN.

    Interpolated, the shares rise linearly from count to count, and the result is the place where they cross.
    """
    reached = running >= share - SHARE_SLACK
    count = (~reached).sum(-1) + 1
    if interpolated:
        padded = torch.nn.functional.pad(running, (1, 0))
        last = count.clamp_max(running.shape[-1])[..., None]
        before, after = padded.gather(-1, last - 1), padded.gather(-1, last)
        step = after - before
        part = (share - before) / torch.where(step > 0, step, 1.0)
        result = (last - 1 + part.clamp(0.0, 1.0))[..., 0]
    else:
        result = count.to(running.dtype)
    result = torch.where(reached.any(-1), result, 0.0)
    return torch.where(running[..., -1].isnan(), torch.nan, result)


def checked_share(share: float) -> float:
    """A share above 0 and at most 1, or one line that says so."""
    if not 0 < share <= 1:
        raise UserError(f"a share must lie above 0 and at most at 1, got {share}: 0.95 means 95 %")
    return share


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """A quotient that is 0 for a zero matrix."""
    return numerator / torch.where(denominator > 0, denominator, 1.0)
