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
    speed = speeds[:, None, None]
    if rank is None:
        fourth = speeds * noise**2 * (m * n - 1) / (2 * lam - speeds * lam**2)
        squares = fourth.sqrt()
        parts = squares, squares
        state = [squares.sqrt()[:, None, None] * _units(len(speeds), m, n, generator)]
    else:
        squares = speeds * noise**2 * math.sqrt((m - 1) * (n - 1)) / (2 * lam)
        state = [
            0.5 * torch.randn(len(speeds), *size, generator=generator, dtype=torch.float64)
            for size in ((m, rank), (rank, n))
        ]
        # The rank decides how large factors of a product of this size are; their ratio does not depend on it.
        parts = None, None
    norms, sizes = [], []
    for step in range(count):
        whole = state[0] if rank is None else state[0] @ state[1]
        size = torch.linalg.matrix_norm(whole)[:, None, None]
        unit = whole / size
        drawn = noise * torch.randn(m, n, generator=generator, dtype=torch.float64)
        force = (drawn - (drawn * unit).sum((-2, -1), keepdim=True) * unit) / size
        pushes = [force] if rank is None else [force @ state[1].mT, state[0].mT @ force]
        state = [(1 - speed * lam) * one - speed * push for one, push in zip(state, pushes, strict=True)]
        if step >= count // 2:
            norms.append(size.flatten().square())
            sizes.append(torch.stack([one.square().sum((-2, -1)) for one in (state[0], state[-1])]))
    whole = state[0] if rank is None else state[0] @ state[1]
    values = torch.linalg.svdvals(whole).square()
    measured = torch.stack(norms).mean(0)
    means = torch.stack(sizes).mean(0)
    if parts[0] is None:
        ratio, total = math.sqrt((m - 1) / (n - 1)), means.sum(0)
        parts = total * ratio / (1 + ratio), total / (1 + ratio)
    return EquilibriumStep(
        SideBySide(squares.sqrt(), simulated=measured.sqrt()),
        SideBySide(speeds / squares, simulated=speeds / measured),
        SideBySide(torch.stack([one for one in parts if one is not None]), simulated=means),
        stable_ranks=values.sum(-1) / values[:, 0],
        rates=speeds,
    )


def _tangent(matrix: Tensor, unit: Tensor) -> Tensor:
    return matrix - (matrix * unit).sum() * unit


def _units(count: int, m: int, n: int, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(count, m, n, generator=generator, dtype=torch.float64)
    return drawn / torch.linalg.matrix_norm(drawn)[:, None, None]


def _slope(rates: Sequence[float], errors: Sequence[float], *, expected: float) -> SideBySide:
    """The least-squares slope of the logarithms."""
    across = torch.tensor(rates, dtype=torch.float64).log()
    up = torch.tensor(errors, dtype=torch.float64).log()
    across, up = across - across.mean(), up - up.mean()
    return SideBySide(
        torch.tensor(expected, dtype=torch.float64), simulated=(across * up).sum() / across.square().sum()
    )
