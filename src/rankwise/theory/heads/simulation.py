"""Training full-matrix products from any scale of initialization, by gradient descent and by gradient flow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError, require
from rankwise.theory.factorized.convention import checked_decay
from rankwise.theory.heads.graded import Graded
from rankwise.theory.heads.losses import Products, ProductsLoss, check_starts
from rankwise.theory.problem import NotFinite

if TYPE_CHECKING:
    from jaxtyping import Float

Factors = Sequence[tuple[Tensor, Tensor]]
# A flow's basis is made orthonormal again after it may have grown by so many e-foldings.
FOLDINGS = 3.0


@dataclass(frozen=True)
class HeadRun:
    """A run on the factors of some products.

    Arguments:
        names: of the products.
        log_alpha: the logarithm of the scale of the initialization.
        times: when the run was recorded, in units of gradient flow: steps times the rate for gradient descent.
        products: of each product, `[n, m, k]`.
        log_scales: of each product, the logarithms `d` of its factors' directions, largest first: how far those that
            have not yet grown are from mattering.
        losses: at the recorded times.
    """

    names: tuple[str, ...]
    log_alpha: float = field(kw_only=True)
    times: Float[Tensor, " n"] = field(kw_only=True, repr=False)
    products: tuple[Float[Tensor, "n m k"], ...] = field(kw_only=True, repr=False)
    log_scales: tuple[Float[Tensor, "n w"], ...] = field(kw_only=True, repr=False)
    losses: Float[Tensor, " n"] = field(kw_only=True, repr=False)

    @property
    def span(self) -> float:
        """`log(1/alpha)`."""
        return -self.log_alpha

    @property
    def values(self) -> dict[str, Float[Tensor, "n k"]]:
        """The singular values of every product at every recorded time, by name."""
        return {name: torch.linalg.svdvals(one) for name, one in zip(self.names, self.products, strict=True)}

    def ranks(self, name: str, level: float) -> Float[Tensor, " n"]:
        """How many singular values of a product are above a level."""
        if name not in self.names:
            raise UserError(f"this run has no product {name!r}: it has {', '.join(self.names)}")
        return (self.values[name] > level).sum(-1)

    def reached(self, name: str, index: int, level: float) -> float:
        """When a singular value of a product first reaches a level, interpolating logarithms; NaN if never."""
        path = self.values[name][:, index]
        above = (path >= level).nonzero()
        if not len(above):
            return math.nan
        after = int(above[0])
        if not after:
            return float(self.times[0])
        low, high = path[after - 1 : after + 1].clamp_min(1e-300).log().tolist()
        first, last = self.times[after - 1 : after + 1].tolist()
        return first + (math.log(level) - low) / (high - low) * (last - first)


def head_descent(
    loss: ProductsLoss,
    starts: Factors,
    *,
    log_alpha: float,
    rate: float,
    steps: int,
    decay: float = 0.0,
    every: int = 1,
) -> HeadRun:
    """Gradient descent on the factors of each product, from `alpha` times the given ones, at any alpha.

    Arguments:
        loss: of the products, such as `HeadLoss(inputs, targets)`.
        starts: a pair `(left, right)` for each product.
        log_alpha: the logarithm of alpha.
        rate: the learning rate.
        steps: how many.
        decay: `lam`, halved: the factors are multiplied by `1 - rate lam` in each step.
        every: record after so many steps, and after the last.

    >>> from rankwise.theory import MatrixLoss, SingleProduct
    >>> loss = SingleProduct(MatrixLoss.denoising(torch.diag(torch.tensor([1.0, 0.5]))))
    >>> run = head_descent(loss, [(torch.eye(2), torch.eye(2))], log_alpha=-100.0, rate=0.1, steps=3000, every=10)
    >>> run.values["product"][-1].round(decimals=6).tolist(), int(run.ranks("product", 0.1)[130])
    ([1.0, 0.5], 1)
    """
    if not rate > 0 or steps < 1 or every < 1:
        raise UserError(
            f"a rate of {rate:g} and {steps} steps, recorded every {every}, were given: give positive numbers"
        )
    first = begun(loss, starts, log_alpha)
    recorded, at = [first], [0]
    for step, states in enumerate(descending(loss, first, rate=rate, decay=decay), 1):
        if step % every == 0 or step == steps:
            recorded.append(states)
            at.append(step)
        if step == steps:
            break
    return _run(loss, recorded, torch.tensor(at, dtype=torch.float64) * rate, log_alpha)


def head_flow(
    loss: ProductsLoss,
    starts: Factors,
    *,
    log_alpha: float,
    until: float,
    decay: float = 0.0,
    points: int = 201,
    tolerance: float = 1e-8,
) -> HeadRun:
    """Gradient flow on the factors of each product, from `alpha` times the given ones, at any alpha.

    scipy follows the motion of an orthonormal basis for a few e-foldings at a time, never that of the weights, so that
    its tolerance is a relative one for every direction however small. A direction that has grown and leaves again is
    the limit: its way back depends on `A^T A - R R^T`, of order `alpha^2`, which is held to the tolerance only, and it
    comes back too early. For diagonal weights `flow` holds it exactly.

    Arguments:
        loss: of the products.
        starts: a pair `(left, right)` for each product.
        log_alpha: the logarithm of alpha.
        until: the last time, not rescaled.
        decay: `lam`, halved.
        points: how many times are recorded.
        tolerance: of the solver.

    >>> from rankwise.theory import MatrixLoss, SingleProduct
    >>> loss = SingleProduct(MatrixLoss.denoising(torch.diag(torch.tensor([1.0, 0.5]))))
    >>> run = head_flow(loss, [(torch.eye(2), torch.eye(2))], log_alpha=-100.0, until=300.0, points=601)
    >>> round(run.reached("product", 0, 0.5)), round(run.reached("product", 1, 0.25))
    (100, 199)
    """
    if not 0 < until < math.inf or points < 2:
        raise UserError(f"until = {until} with {points} points was given: give a positive time and at least 2 points")
    first = begun(loss, starts, log_alpha)
    times = torch.linspace(0.0, until, points, dtype=torch.float64)
    recorded = [first, *flowing(loss, first, times[1:].tolist(), decay=decay, tolerance=tolerance)]
    return _run(loss, recorded, times, log_alpha)


def begun(loss: ProductsLoss, starts: Factors, log_alpha: float) -> tuple[Graded, ...]:
    """The factors at the start."""
    check_starts(loss, starts)
    if not math.isfinite(log_alpha):
        raise UserError(f"log_alpha = {log_alpha} was given: give the logarithm of the scale, such as -18.4 for 1e-8")
    return tuple(Graded.of(left, right, log_alpha=log_alpha) for left, right in starts)


def descending(
    loss: ProductsLoss, states: tuple[Graded, ...], *, rate: float, decay: float = 0.0
) -> Iterator[tuple[Graded, ...]]:
    """The factors after each step of gradient descent, without end."""
    shrink = 1 - rate * checked_decay(decay)
    while True:
        gradients = checked_gradients(loss, tuple(one.product() for one in states))
        states = tuple(
            one.moved(shrink * one.basis + rate * one.force(gradient))
            for one, gradient in zip(states, gradients, strict=True)
        )
        yield states


def flowing(
    loss: ProductsLoss,
    states: tuple[Graded, ...],
    times: Sequence[float],
    *,
    decay: float = 0.0,
    tolerance: float = 1e-8,
) -> Iterator[tuple[Graded, ...]]:
    """The factors at given times of gradient flow."""
    solve, lam = require("scipy.integrate", extra="theory").solve_ivp, checked_decay(decay)
    passed, waiting = 0.0, list(times)
    while waiting:
        motion = _Motion(loss, states, lam)
        stretch = min(times[-1] - passed, FOLDINGS / motion.speed)
        # Rounding may put the last time a hair beyond the end of its stretch.
        asked = [min(time - passed, stretch) for time in waiting if time <= (passed + stretch) * (1 + 1e-12)]
        waiting = waiting[len(asked) :]
        ends = asked if asked and asked[-1] == stretch else [*asked, stretch]
        answer = solve(
            motion.slope,
            (0.0, stretch),
            torch.cat([one.basis.reshape(-1) for one in states]).numpy(),
            method="DOP853",
            t_eval=ends,
            rtol=max(tolerance, 1e-13),
            atol=tolerance * 1e-2,
        )
        if not answer.success:
            raise UserError(f"the flow could not be followed beyond t = {passed:.6g} ({answer.message})")
        for place in range(len(asked)):
            yield motion.arrived(answer.y[:, place])
        states, passed = motion.arrived(answer.y[:, -1]), passed + stretch


@dataclass(frozen=True)
class _Motion:
    """The motion of the bases from some factors on."""

    loss: ProductsLoss
    states: tuple[Graded, ...]
    decay: float

    @property
    def speed(self) -> float:
        """How many e-foldings a unit of time makes, about."""
        gradients = checked_gradients(self.loss, tuple(one.product() for one in self.states))
        return max(max(float(torch.linalg.matrix_norm(one, 2)) for one in gradients) + self.decay, 1e-300)

    def slope(self, _: float, flat) -> object:
        """How fast the bases move, flat for scipy."""
        bases = self._split(flat)
        products = tuple(one.product(basis) for one, basis in zip(self.states, bases, strict=True))
        slopes = [
            one.force(gradient, basis) - self.decay * basis
            for one, gradient, basis in zip(self.states, checked_gradients(self.loss, products), bases, strict=True)
        ]
        return torch.cat([one.reshape(-1) for one in slopes]).numpy()

    def arrived(self, flat) -> tuple[Graded, ...]:
        """The factors whose bases have moved there."""
        return tuple(one.moved(basis) for one, basis in zip(self.states, self._split(flat), strict=True))

    def _split(self, flat) -> list[Tensor]:
        parts = torch.tensor(flat).split([one.basis.numel() for one in self.states])
        return [part.view(one.basis.shape) for part, one in zip(parts, self.states, strict=True)]


def checked_gradients(loss: ProductsLoss, products: Products) -> Products:
    """The gradients by every product, finite or refused."""
    gradients = loss.gradient(products)
    for name, one in zip(loss.names, gradients, strict=True):
        if not math.isfinite(float(one.sum())):
            raise NotFinite(
                f"the gradient by {name} is not finite: is the learning rate too large, or NaN in the data?"
            )
    return gradients


def _run(loss: ProductsLoss, recorded: Sequence[tuple[Graded, ...]], times: Tensor, log_alpha: float) -> HeadRun:
    products = tuple(torch.stack([state.product() for state in states]) for states in zip(*recorded, strict=True))
    return HeadRun(
        tuple(loss.names),
        log_alpha=log_alpha,
        times=times,
        products=products,
        log_scales=tuple(
            torch.stack([state.logs.sort(descending=True).values for state in states])
            for states in zip(*recorded, strict=True)
        ),
        losses=torch.tensor([loss.value(one) for one in zip(*products, strict=True)], dtype=torch.float64),
    )
