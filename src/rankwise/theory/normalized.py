"""A factorized layer before a normalization layer: what one step does to its direction, and how large steps become."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.factorized.convention import checked_decay
from rankwise.theory.factorized.flowing import Penalty
from rankwise.theory.factorized.losses import MatrixLoss, factors_of
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float

RATES = (1e-1, 1e-2, 1e-3, 1e-4)


@dataclass(frozen=True)
class NormalizedStep(Experiment):
    """One step of gradient descent on a loss of `W / |W|_F`, `W = A R`, at several learning rates.

    Arguments:
        velocity: the change of `W / |W|` over the rate as Claim 3.1 has it, beside the exact step's at the least rate.
        slope: 1, beside the slope of `log(error / rate)` by `log(rate)`: the claim's error is of second order.
        bare_slope: the same without the term of Frobenius decay: 0 with that decay, which moves the direction at first
            order; 1 otherwise, for the norm alone feels weight decay.
        rates: the learning rates, the largest first.
        errors: `error / rate` at each.
        effective: `1 / |W|_F^2`, what multiplies the rate, as for a dense layer.
        tangential: the part of the velocity that Frobenius decay makes.
    """

    velocity: SideBySide
    slope: SideBySide
    bare_slope: SideBySide
    rates: Float[Tensor, " rates"] = field(kw_only=True)
    errors: Float[Tensor, " rates"] = field(kw_only=True)
    effective: float = field(kw_only=True)
    tangential: Float[Tensor, "m n"] = field(kw_only=True, repr=False)


def normalized_step(
    loss: MatrixLoss,
    left: Float[Tensor, "m r"],
    right: Float[Tensor, "r n"],
    *,
    decay: float = 0.0,
    penalty: Penalty = Penalty.NONE,
    rates: Sequence[float] = RATES,
) -> NormalizedStep:
    """Take one exact step of both factors, beside Claim 3.1 of the paper on factorized layers (arXiv 2105.01029):

        w' = w - (rate / |W|^2) (1 - w w^T) N + O(rate^2),    N = G R^T R + A A^T G,

    with `w = W / |W|_F` and `G` the gradient by it. Weight decay on the factors only rescales `W`. Frobenius decay adds
    `-rate lam (1 - w w^T)(W R^T R + A A^T W) / |W|`, zero only where all singular values are equal (ours, not in the
    paper).

    Arguments:
        loss: of the normalized matrix; only what does not change its norm is used.
        left: `A`.
        right: `R`.
        decay: `lam`.
        penalty: what it charges: the factors, their product, or nothing.
        rates: the learning rates to compare.

    >>> generator = torch.Generator().manual_seed(0)
    >>> left, right = torch.randn(6, 3, generator=generator), torch.randn(3, 5, generator=generator)
    >>> found = normalized_step(MatrixLoss.rugged((6, 5), seed=0), left, right, decay=0.1, penalty=Penalty.PRODUCT)
    >>> abs(found.slope.simulated.item() - 1) < 0.05, abs(found.bare_slope.simulated.item()) < 0.05
    (True, True)
    """
    a, r = factors_of(loss, left, right)
    lam = checked_decay(decay)
    ordered = sorted(rates, reverse=True)
    if len(ordered) < 2 or not ordered[-1] > 0 or len(set(ordered)) < len(ordered):
        raise UserError(f"rates {list(rates)} were given: give two or more different positive ones, for a slope")
    if penalty is not Penalty.NONE and not lam:
        raise UserError(f"a decay of 0 charges nothing: give a positive one for {penalty}, or Penalty.NONE")
    whole = a @ r
    size = whole.norm()
    unit = whole / size
    gradient = _tangent(loss.gradient(unit), unit)
    on_left, on_right = gradient @ r.mT / size, a.mT @ gradient / size
    moved = -(gradient @ r.mT @ r + a @ a.mT @ gradient) / size**2
    extra = torch.zeros_like(unit)
    if penalty is Penalty.FACTORS:
        on_left, on_right = on_left + lam * a, on_right + lam * r
    elif penalty is Penalty.PRODUCT:
        on_left, on_right = on_left + lam * whole @ r.mT, on_right + lam * a.mT @ whole
        extra = -lam * _tangent(whole @ r.mT @ r + a @ a.mT @ whole, unit) / size
    bare = _tangent(moved, unit)
    predicted = bare + extra
    found, errors, bare_errors = unit, [], []
    for rate in ordered:
        after = (a - rate * on_left) @ (r - rate * on_right)
        found = (after / after.norm() - unit) / rate
        errors.append(float((found - predicted).norm()))
        bare_errors.append(float((found - bare).norm()))
    without = 0.0 if penalty is Penalty.PRODUCT else 1.0
    return NormalizedStep(
        SideBySide(predicted, simulated=found),
        _slope(ordered, errors, expected=1.0),
        _slope(ordered, bare_errors, expected=without),
        rates=torch.tensor(ordered, dtype=torch.float64),
        errors=torch.tensor(errors, dtype=torch.float64),
        effective=float(size**-2),
        tangential=extra,
    )


@dataclass(frozen=True)
class EquilibriumStep(Experiment):
    """Where norms settle under noisy gradients and weight decay before a normalization layer.

    Arguments:
        norm: `|W|_F`, predicted and simulated (the mean of the last half).
        step: `rate / |W|_F^2`, the effective step.
        factors: the two factors' squared norms, in the ratio that noise leads to; for a single matrix, its own twice.
        stable_ranks: of the weight at the end.
        rates: the learning rates, one run for each.
    """

    norm: SideBySide
    step: SideBySide
    factors: SideBySide
    stable_ranks: Float[Tensor, " runs"] = field(kw_only=True)
    rates: Float[Tensor, " runs"] = field(kw_only=True)


def equilibrium_step(
    shape: tuple[int, int],
    *,
    decay: float,
    rates: Sequence[float],
    rank: int | None = None,
    noise: float = 1.0,
    steps: int | None = None,
    seed: int = 0,
) -> EquilibriumStep:
    """Train on pure gradient noise with weight decay until norms settle, beside where they must.

    Gradients are at right angles to a weight whose scale does not matter, so each step adds to its square norm what
    decay takes. A single matrix settles, with `g` the gradient by the normalized weight, at

        |W|^4 = rate |g|^2 / (2 lam - rate lam^2),    rate / |W|^2 = sqrt(2 rate lam) / |g|  nearly.

    For two factors and noise of variance `noise^2` in every entry (our own, by the same argument on each factor),

        |W|^2 = rate noise^2 q / (2 lam),    rate / |W|^2 = 2 lam / (noise^2 q),    q = sqrt((m - 1)(n - 1)):

    the effective step of a factorized layer does not depend on the learning rate at all. (The ones are what the
    normalization takes away from a product of rank one, to which noise and decay lead; before, `q` is a little larger.)

    Arguments:
        shape: `(m, n)` of the weight.
        decay: `lam`, on the factors or the single matrix.
        rates: learning rates, one run for each.
        rank: of the factors; without it, a single matrix.
        noise: the standard deviation of the entries of `g`.
        steps: how many; six times what decay needs for one e-folding by default.
        seed: of the noise.

    >>> found = equilibrium_step((12, 8), decay=0.05, rates=[0.1, 0.2])
    >>> found.norm.relative_error < 0.03, found.step.relative_error < 0.06
    (True, True)
    """
    lam, speeds = checked_decay(decay), torch.tensor(list(rates), dtype=torch.float64)
    m, n = shape
    if not lam or not len(speeds) or not bool((speeds > 0).all()) or not noise > 0:
        raise UserError("an equilibrium needs a positive decay, positive rates and positive noise")
    if float(speeds.max()) * lam > 0.1:
        raise UserError(
            f"rate {float(speeds.max()):g} times decay {lam:g} is above 0.1: steps this long have other laws"
        )
    count = steps or int(6 / (float(speeds.min()) * lam))
    generator = torch.Generator().manual_seed(seed)
    if rank is None:
        squares = (speeds * noise**2 * (m * n - 1) / (2 * lam - speeds * lam**2)).sqrt()
        drawn = torch.randn(len(speeds), m, n, generator=generator, dtype=torch.float64)
        start = [drawn * (squares.sqrt() / torch.linalg.matrix_norm(drawn))[:, None, None]]
    else:
        squares = speeds * noise**2 * math.sqrt((m - 1) * (n - 1)) / (2 * lam)
        start = [
            0.5 * torch.randn(len(speeds), *size, generator=generator, dtype=torch.float64)
            for size in ((m, rank), (rank, n))
        ]
    chain, norms, sizes = _jiggled(start, speeds, lam, noise, count, generator)
    values = torch.linalg.svdvals(chain[0] if rank is None else chain[0] @ chain[1]).square()
    # How large factors of a product are depends on its rank, their ratio does not.
    share = 0.5 if rank is None else math.sqrt(m - 1) / (math.sqrt(m - 1) + math.sqrt(n - 1))
    total = 2 * squares if rank is None else sizes.sum(0)
    return EquilibriumStep(
        SideBySide(squares.sqrt(), simulated=norms.sqrt()),
        SideBySide(speeds / squares, simulated=speeds / norms),
        SideBySide(torch.stack([share * total, (1 - share) * total]), simulated=sizes),
        stable_ranks=values.sum(-1) / values[:, 0],
        rates=speeds,
    )


def _jiggled(
    chain: list[Tensor], speeds: Tensor, decay: float, noise: float, count: int, generator: torch.Generator
) -> tuple[list[Tensor], Tensor, Tensor]:
    """One matrix or two factors after steps of pure noise, the mean square norms of the product and of the two ends."""
    speed = speeds[:, None, None]
    norms, sizes = torch.zeros_like(speeds), torch.zeros(2, len(speeds), dtype=torch.float64)
    for step in range(count):
        whole = chain[0] if len(chain) == 1 else chain[0] @ chain[1]
        size = torch.linalg.matrix_norm(whole)[:, None, None]
        unit = whole / size
        drawn = noise * torch.randn(whole.shape[1:], generator=generator, dtype=torch.float64)
        force = (drawn - (drawn * unit).sum((-2, -1), keepdim=True) * unit) / size
        pushes = [force] if len(chain) == 1 else [force @ chain[1].mT, chain[0].mT @ force]
        chain = [(1 - speed * decay) * one - speed * push for one, push in zip(chain, pushes, strict=True)]
        if step >= count // 2:
            norms += size.flatten().square()
            sizes += torch.stack([one.square().sum((-2, -1)) for one in (chain[0], chain[-1])])
    return chain, norms / (count - count // 2), sizes / (count - count // 2)


def _tangent(matrix: Tensor, unit: Tensor) -> Tensor:
    return matrix - (matrix * unit).sum() * unit


def _slope(rates: Sequence[float], errors: Sequence[float], *, expected: float) -> SideBySide:
    """The least-squares slope of the logarithms."""
    across = torch.tensor(rates, dtype=torch.float64).log()
    up = torch.tensor(errors, dtype=torch.float64).log()
    across, up = across - across.mean(), up - up.mean()
    return SideBySide(
        torch.tensor(expected, dtype=torch.float64), simulated=(across * up).sum() / across.square().sum()
    )
