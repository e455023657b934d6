"""Gradient flow from a small initialization, exactly: in logarithmic coordinates, at any scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError, require
from rankwise.theory.crossings import crossing_times
from rankwise.theory.integration import Trajectory, integrate
from rankwise.theory.log_space import LogSpace, start_weights
from rankwise.theory.path import Path
from rankwise.theory.problem import Problem

if TYPE_CHECKING:
    from jaxtyping import Float

# Columns of the Jacobian of products that move this little against the most mobile one are zero.
IDLE = 1e-6


@dataclass(frozen=True)
class Flow:
    """A run of gradient flow. Times are rescaled: `t / log(1/alpha)`.

    Arguments:
        problem: whose loss it follows.
        space: the logarithmic coordinates, with `log_alpha` and the start.
        trajectory: the solution in them, by time `t`.
    """

    problem: Problem = field(repr=False)
    space: LogSpace = field(kw_only=True, repr=False)
    trajectory: Trajectory = field(kw_only=True, repr=False)

    @property
    def log_alpha(self) -> float:
        """The natural logarithm of the scale of the initialization."""
        return self.space.log_alpha

    @property
    def span(self) -> float:
        """`log(1/alpha)`, the unit of rescaled time."""
        return self.space.span

    @property
    def times(self) -> Float[Tensor, " steps"]:
        """The solver's own steps, in rescaled time."""
        return self.trajectory.times / self.span

    @property
    def products(self) -> Float[Tensor, "steps p"]:
        """`u * v` at every step."""
        return self.space.products(self.trajectory.states)

    @property
    def log_scales(self) -> Float[Tensor, "steps p"]:
        """`log_alpha (u + v)` at every step, which tends to `b`: 1 at first, 0 or 2 for active coordinates.

        Its distance to the limit falls like `1 / log(1/alpha)`.
        """
        return self.space.log_scale(self.trajectory.states)

    @property
    def conserved(self) -> Float[Tensor, " p"]:
        """`(u_i^2 - v_i^2) / alpha^2`, which gradient flow never changes; these coordinates hold it exactly."""
        return self.space.log_imbalance.exp() * torch.where(self.space.exchanged, -1.0, 1.0)

    @property
    def complete(self) -> bool:
        """Whether the flow reached its end."""
        return self.trajectory.failure is None

    @property
    def reason(self) -> str:
        """Why it did not reach its end, or nothing."""
        return self.trajectory.failure or ""

    def at(self, times: float | Float[Tensor, " n"]) -> FlowState:
        """The state at any rescaled times up to the last."""
        asked = torch.as_tensor(times, dtype=torch.float64)
        last = self.times[-1].item()
        outside = asked[~((asked >= 0) & (asked <= last * (1 + 1e-12)))]
        if outside.numel():
            raise UserError(
                f"the flow was asked for time {outside[0].item():g}, it covers 0 to {last:.6g}: integrate further, "
                "until=..."
            )
        states = self.trajectory.at((asked * self.span).clamp(max=self.trajectory.times[-1].item()).reshape(-1))
        return FlowState(asked, coordinates=states.reshape(*asked.shape, -1), space=self.space)

    def losses(self, times: Float[Tensor, " n"] | None = None) -> Float[Tensor, " n"]:
        """The loss at the solver's steps, or at given rescaled times."""
        products = self.products if times is None else self.at(times).products
        return torch.tensor([self.problem.value(one) for one in products], dtype=torch.float64)

    def stage_times(self, path: Path) -> Float[Tensor, " stages"]:
        """When each stage of the greedy path happened, in rescaled time `t_k / log(1/alpha)`.

        A stage happens when its product, with the predicted sign, reaches half its value on the predicted plateau.

        Returns:
            One time a stage, to compare with `path.times`; NaN for stages that the run did not reach.
        """
        return crossing_times(path, self.times, self.products, refine=self._refine)

    def _refine(self, coordinate: int, level: float, before: int, after: int) -> float:
        """The moment between two steps at which a product crosses a level."""
        target = self.space.coordinates(torch.tensor(level, dtype=torch.float64))[coordinate].item()
        low, high = self.trajectory.times[[before, after]].tolist()

        def distance(time: float) -> float:
            return self.trajectory.at(torch.tensor([time], dtype=torch.float64))[0, coordinate].item() - target

        optimize = require("scipy.optimize", extra="theory")
        if distance(low) * distance(high) > 0:  # Rounding at the very end of a step.
            return high / self.span
        return float(optimize.brentq(distance, low, high, xtol=1e-14 * high, rtol=1e-14)) / self.span

    def perturbed(self, time: float, *, noise: float, seed: int, duration: float, threshold: float = 1e-5) -> Flow:
        """The flow that goes on from a perturbed state: the experiment behind Assumptions 4.3 and 4.4.

        Noise is added to `u` of every coordinate whose product is not negligible, and `v` follows, so that the
        conserved quantity stays what it was; noise on negligible coordinates would begin new stages.

        Arguments:
            time: when, in rescaled time; the new flow counts from there.
            noise: its standard deviation, on the scale of `u = sqrt|q|`.
            seed: of the noise.
            duration: of the new flow, in rescaled time.
            threshold: products up to here are negligible.
        """
        before = self.at(time)
        products = before.products
        generator = torch.Generator().manual_seed(seed)
        drawn = noise * torch.randn(len(products), generator=generator, dtype=torch.float64)
        moved = products.sign() * (products.abs().sqrt() + drawn).square()
        chosen = products.abs() > threshold
        state = torch.where(chosen, self.space.coordinates(moved), before.coordinates)
        return _solve(self.problem, self.space, state, until=duration, tolerance=1e-8)

    def __repr__(self) -> str:
        ended = "" if self.complete else f", INCOMPLETE: {self.reason}"
        return (
            f"Flow(log_alpha={self.log_alpha:.4g}, {self.problem.size} products, rescaled time 0 to "
            f"{self.times[-1].item():.4g}, {len(self.times)} steps{ended})"
        )


@dataclass(frozen=True)
class FlowState:
    """What a network with diagonal weights is at some rescaled times of a flow.

    Arguments:
        times: in rescaled time.
        coordinates: `y = atanh(v / u)`.
        space: what they mean.
    """

    times: Float[Tensor, "*times"]
    coordinates: Float[Tensor, "*times p"] = field(kw_only=True, repr=False)
    space: LogSpace = field(kw_only=True, repr=False)

    @property
    def products(self) -> Float[Tensor, "*times p"]:
        """`u * v`."""
        return self.space.products(self.coordinates)

    @property
    def weights(self) -> tuple[Float[Tensor, "*times p"], Float[Tensor, "*times p"]]:
        """`(u, v)`; below about 1e-308 they underflow to zero, where products and log-scales do not."""
        return self.space.weights(self.coordinates)

    @property
    def log_scale(self) -> Float[Tensor, "*times p"]:
        """`log_alpha (u + v)`."""
        return self.space.log_scale(self.coordinates)


def flow(
    problem: Problem, *, log_alpha: float, start: tuple[Tensor, Tensor], until: float, tolerance: float = 1e-8
) -> Flow:
    """Gradient flow on the raw weights `(u, v)` from `alpha (u0, v0)`, at any alpha that has a logarithm.

    In `y = atanh(v / u)` the flow is `dy/dt = g(q)` with `q = (alpha^2 c / 2) sinh(2 y)`: nothing underflows, and
    `u^2 - v^2` is conserved exactly. On the raw weights float64 forgets it near alpha = 1e-8, and a coordinate that
    left the support can then never come back.

    Arguments:
        problem: the loss of the products.
        log_alpha: the natural logarithm of alpha, below zero; -690.8 is 1e-300.
        start: `(u0, v0)`, with `|u0| != |v0|` in every coordinate.
        until: the last rescaled time, in units of `log(1/alpha)`; the times of a greedy path are in the same units.
        tolerance: of the solver, absolute and relative; a relative error of the products.

    Returns:
        The run; where the solver failed it holds what was reached, and says why in `reason`.

    >>> target = torch.tensor([2.0, -4.0], dtype=torch.float64)
    >>> problem = Problem(gradient=lambda q: q - target, size=2)
    >>> run = flow(problem, log_alpha=math.log(1e-300), start=(torch.ones(2), torch.zeros(2)), until=1.0)
    >>> run.products[-1].round(decimals=4)
    tensor([ 2., -4.], dtype=torch.float64)
    """
    start = start_weights(*start)
    if len(start[0]) != problem.size:
        raise UserError(
            f"the start has {len(start[0])} coordinates, the problem {problem.size}: give u0 and v0 of its size"
        )
    if not (until > 0 and math.isfinite(until)):
        raise UserError(f"until = {until}: give the last rescaled time, a positive number such as 1.2 * path.times[-1]")
    if not tolerance > 0:
        raise UserError(f"the tolerance is {tolerance}: give a positive number such as 1e-8")
    space = LogSpace.of(log_alpha, *start)
    problem.force(space.products(space.start))
    return _solve(problem, space, space.start, until=until, tolerance=tolerance)


def _solve(problem: Problem, space: LogSpace, state: Tensor, *, until: float, tolerance: float) -> Flow:
    everyone = torch.arange(problem.size)

    def jacobian(y: Tensor) -> Tensor:
        slopes = space.slopes(y)
        mobile = (slopes > IDLE * slopes.max()).nonzero().flatten()
        found = y.new_zeros(problem.size, problem.size)
        if len(mobile):
            found[:, mobile] = -problem.hessian_block(space.products(y), everyone, mobile) * slopes[mobile]
        return found

    trajectory = integrate(
        lambda y: problem.force(space.products(y)),
        state,
        until=until * space.span,
        jacobian=jacobian,
        tolerance=tolerance,
    )
    return Flow(problem, space=space, trajectory=trajectory)


def sweep(
    problem: Problem,
    *,
    log_alphas: Sequence[float],
    start: tuple[Tensor, Tensor],
    until: float,
    tolerance: float = 1e-8,
) -> tuple[Flow, ...]:
    """The same flow from several scales of initialization, in the order given; see `flow`.

    >>> problem = Problem(gradient=lambda q: q - 1, size=1)
    >>> runs = sweep(problem, log_alphas=[-20.0, -200.0], start=(torch.ones(1), torch.zeros(1)), until=2.0)
    >>> [round(run.span) for run in runs]
    [20, 200]
    """
    return tuple(flow(problem, log_alpha=one, start=start, until=until, tolerance=tolerance) for one in log_alphas)
