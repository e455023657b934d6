"""Local minima of the factors and of the nuclear norm are the same: checked from both sides on rugged losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.factorized.certificate import FLOOR, lifted
from rankwise.theory.factorized.convention import Convention
from rankwise.theory.factorized.losses import random_factors
from rankwise.theory.factorized.shrinkage import soft_threshold
from rankwise.theory.factorized.solving import State, minimized
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float

# A proximal-gradient run has ended when a step moves nothing by more than this.
STILL = 1e-13


@dataclass(frozen=True)
class FactorMinimum(Experiment):
    """An end point of the decayed factors, seen by the nuclear norm.

    Arguments:
        value: `L + lam |W|_*`, beside `L + (lam / 2)(|A|^2 + |R|^2)`: equal at every stationary point.
        aligned: `-lam U V^T`, beside the gradient on the live directions: stationary on matrices of this rank.
        excess: `|M_perp| / lam`: at most 1 where the inner width is not used up.
        rank: of the product.
        width: the inner width.
        others: the largest gradient of the parameters outside the product.
        residual: the largest entry of the whole gradient.
    """

    value: SideBySide
    aligned: SideBySide
    excess: float = field(kw_only=True)
    rank: int = field(kw_only=True)
    width: int = field(kw_only=True)
    others: float = field(kw_only=True)
    residual: float = field(kw_only=True)

    @property
    def corresponds(self) -> bool:
        """Whether it is a stationary point of the nuclear norm's loss among matrices of rank up to the width."""
        stationary = max(self.value.relative_error, self.aligned.error, self.others) < 1e-6
        return stationary and (self.rank == self.width or self.excess <= 1 + 1e-6)


@dataclass(frozen=True)
class NuclearMinimum(Experiment):
    """An end point of proximal gradient descent on the nuclear norm's loss, seen by balanced factors.

    Arguments:
        value: `L + lam |W|_*`, beside the factors' loss with decay.
        gradient: zeros, beside the gradient of the factors' loss there (and of the other parameters).
        rank: of the matrix.
        steps: that proximal gradient descent took.
    """

    value: SideBySide
    gradient: SideBySide
    rank: int = field(kw_only=True)
    steps: int = field(kw_only=True)

    @property
    def corresponds(self) -> bool:
        """Whether the factors are stationary."""
        return self.gradient.error < 1e-6 and self.value.relative_error < 1e-9


def factor_minimum(
    loss: Callable[..., Tensor],
    *,
    shape: tuple[int, int],
    rank: int,
    decay: float,
    others: Float[Tensor, " p"] | None = None,
    start: float = 1.0,
    seed: int = 0,
) -> FactorMinimum:
    """Minimize the factors' loss with decay from a random start, and look at the end point with the nuclear norm.

    Theorem 3.3 of arXiv 2410.23819: `(A, R)` is a local minimum if and only if `A R` is one of `L + lam |W|_*` among
    matrices of rank up to the inner width and the factors are balanced; other parameters change nothing.

    Arguments:
        loss: a smooth torch function of `W [m, n]`, or of `W` and a vector of other parameters, to a scalar.
        shape: of `W`.
        rank: the inner width.
        decay: `lam`.
        others: where the other parameters start, for a loss that has some.
        start: the standard deviation of the factors' entries.
        seed: of the start.

    >>> found = factor_minimum(lambda w: (w - 1).square().sum() / 2, shape=(3, 4), rank=2, decay=0.5)
    >>> found.rank, found.corresponds
    (1, True)
    """
    pressure = _pressed(decay)
    free = torch.zeros(0, dtype=torch.float64) if others is None else others.detach().double()

    def plain(w: Tensor, theta: Tensor) -> Tensor:
        return loss(w) if others is None else loss(w, theta)

    def charged(state: State) -> Tensor:
        a, r, theta = state
        return plain(a @ r, theta) + pressure / 2 * (a.square().sum() + r.square().sum())

    (a, r, theta), residual = minimized(charged, (*random_factors(shape, rank=rank, scale=start, seed=seed), free))
    w = a @ r
    u, values, vt = torch.linalg.svd(w, full_matrices=False)
    live = int((values > FLOOR * max(float(values[0]), FLOOR)).sum())
    u, v = u[:, :live], vt[:live].mT
    gradient = torch.func.grad(plain)(w, theta)
    beyond = gradient - u @ (u.mT @ gradient)
    beyond = beyond - (beyond @ v) @ v.mT
    return FactorMinimum(
        SideBySide(plain(w, theta) + pressure * values.sum(), simulated=charged((a, r, theta))),
        SideBySide(-pressure * u @ v.mT, simulated=gradient - beyond),
        excess=float(torch.linalg.matrix_norm(beyond, 2)) / pressure,
        rank=live,
        width=rank,
        others=float(torch.func.grad(plain, argnums=1)(w, theta).abs().max()) if len(free) else 0.0,
        residual=residual,
    )


def nuclear_minimum(
    loss: Callable[..., Tensor],
    *,
    shape: tuple[int, int],
    rank: int,
    decay: float,
    others: Float[Tensor, " p"] | None = None,
    start: float = 1.0,
    seed: int = 0,
    most_steps: int = 20_000,
) -> NuclearMinimum:
    """Proximal gradient descent on `L + lam |W|_*` among matrices of a rank, its end point lifted to balanced factors.

    Each step follows the gradient, soft-thresholds the singular values and keeps the largest; the step is halved until
    the loss is below its quadratic model.

    Arguments:
        loss: a smooth torch function of `W [m, n]`, or of `W` and a vector of other parameters, to a scalar.
        shape: of `W`.
        rank: the most that it may have.
        decay: `lam`.
        others: where the other parameters start, for a loss that has some.
        start: the standard deviation of the entries of two random factors whose product is the start.
        seed: of the start.
        most_steps: give up afterwards.

    >>> found = nuclear_minimum(lambda w: (w - 1).square().sum() / 2, shape=(3, 4), rank=2, decay=0.5)
    >>> found.rank, found.corresponds
    (1, True)
    """
    pressure = _pressed(decay)
    theta = torch.zeros(0, dtype=torch.float64) if others is None else others.detach().double()

    def plain(w: Tensor, theta: Tensor) -> Tensor:
        return loss(w) if others is None else loss(w, theta)

    slopes = torch.func.grad_and_value(plain, argnums=(0, 1))
    left, right = random_factors(shape, rank=rank, scale=start, seed=seed)
    w, rate, steps = left @ right, 1.0, 0
    while steps < most_steps:
        steps += 1
        (by_matrix, by_others), value = slopes(w, theta)
        while True:
            moved, following = _proximal(w - rate * by_matrix, rate * pressure, rank), theta - rate * by_others
            change, shift = moved - w, following - theta
            size = change.square().sum() + shift.square().sum()
            model = value + (by_matrix * change).sum() + (by_others * shift).sum() + size / (2 * rate)
            if float(plain(moved, following) - model) <= 1e-12 * (1 + abs(float(value))):
                break
            rate /= 2
        w, theta = moved, following
        if float(size.sqrt()) <= STILL * (1 + float(w.norm())):
            break
    a, r = lifted(w, rank=rank)

    def charged(a: Tensor, r: Tensor, theta: Tensor) -> Tensor:
        return plain(a @ r, theta) + pressure / 2 * (a.square().sum() + r.square().sum())

    gradients = torch.cat([one.reshape(-1) for one in torch.func.grad(charged, argnums=(0, 1, 2))(a, r, theta)])
    values = torch.linalg.svdvals(w)
    return NuclearMinimum(
        SideBySide(plain(w, theta) + pressure * values.sum(), simulated=charged(a, r, theta)),
        SideBySide(torch.zeros_like(gradients), simulated=gradients),
        rank=int((values > FLOOR * max(float(values[0]), FLOOR)).sum()),
        steps=steps,
    )


def _proximal(values: Tensor, threshold: float, rank: int) -> Tensor:
    u, sizes, vt = torch.linalg.svd(values, full_matrices=False)
    kept = soft_threshold(sizes, threshold)
    kept[rank:] = 0.0
    return (u * kept) @ vt


def _pressed(decay: float) -> float:
    if not Convention.HALVED.pressure(decay):
        raise UserError("a decay of 0 was given: without it stationary points need not correspond; give a positive one")
    return decay
