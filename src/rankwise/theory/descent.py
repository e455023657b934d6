"""Plain training of the raw weights with any torch optimizer: what the theory is held against, and where it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.crossings import crossing_times
from rankwise.theory.log_space import start_weights
from rankwise.theory.path import Path
from rankwise.theory.problem import NotFinite, Problem

if TYPE_CHECKING:
    from jaxtyping import Float, Int


@dataclass(frozen=True)
class Descent:
    """A run of an optimizer on the raw weights `(u, v)`.

    Arguments:
        problem: whose loss it descended.
        log_alpha: the logarithm of the scale of the initialization.
        steps: when the weights were recorded, in optimizer steps; the start is step 0.
        weights: `(u, v)` then.
        rate: time per step: the learning rate of plain gradient descent; None for optimizers that are not discrete
            gradient flows.
        reason: why it stopped before its last step, or nothing.
    """

    problem: Problem = field(repr=False)
    log_alpha: float = field(kw_only=True)
    steps: Int[Tensor, " n"] = field(kw_only=True, repr=False)
    weights: tuple[Float[Tensor, "n p"], Float[Tensor, "n p"]] = field(kw_only=True, repr=False)
    rate: float | None = field(kw_only=True)
    reason: str = field(kw_only=True, default="")

    @property
    def products(self) -> Float[Tensor, "n p"]:
        """`u * v` at every recorded step."""
        return self.weights[0] * self.weights[1]

    @property
    def span(self) -> float:
        """`log(1/alpha)`, the unit of rescaled time."""
        return -self.log_alpha

    @property
    def complete(self) -> bool:
        """Whether it took all its steps."""
        return not self.reason

    @property
    def times(self) -> Float[Tensor, " n"]:
        """Rescaled times, `step rate / log(1/alpha)`; refused where steps are not time."""
        if self.rate is None:
            raise UserError(
                "steps of this optimizer are not a time of gradient flow (Adam divides by the gradient's size, so its "
                "stage times do not grow with log(1/alpha)): use .steps and stage_steps(path)"
            )
        if not self.span > 0:
            raise UserError(f"log_alpha = {self.log_alpha:g}: rescaled time needs alpha below 1; use .steps instead")
        return self.steps * (self.rate / self.span)

    @property
    def imbalance(self) -> Float[Tensor, "n p"]:
        """`u^2 - v^2`, which gradient flow conserves and finite steps do not."""
        u, v = self.weights
        return (u - v) * (u + v)

    def losses(self) -> Float[Tensor, " n"]:
        """The loss at every recorded step."""
        return torch.tensor([self.problem.value(one) for one in self.products], dtype=torch.float64)

    def stage_steps(self, path: Path) -> Float[Tensor, " stages"]:
        """At which step each stage of the greedy path happened, for any optimizer; NaN for stages not reached."""
        return crossing_times(path, self.steps.double(), self.products, refine=self._refine)

    def stage_times(self, path: Path) -> Float[Tensor, " stages"]:
        """The same in rescaled time; for plain gradient descent."""
        return self.stage_steps(path) * (self.times[-1] / self.steps[-1])

    def _refine(self, coordinate: int, level: float, before: int, after: int) -> float:
        """Between two recorded steps products grow like exponentials: interpolate their logarithms."""
        low, high = (self.products[place, coordinate].item() / level for place in (before, after))
        first, last = (self.steps[place].item() for place in (before, after))
        share = (0.5 if low <= 0 else -math.log(low) / (math.log(high) - math.log(low))) if high > low else 1.0
        return first + share * (last - first)


def descend(
    problem: Problem,
    *,
    optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
    log_alpha: float,
    start: tuple[Tensor, Tensor],
    steps: int,
    every: int = 1,
    batch: int | None = None,
    seed: int = 0,
) -> Descent:
    """Train the raw weights from `alpha (u0, v0)` in float64 with a torch optimizer.

    With plain SGD on the whole loss it is the Euler scheme of gradient flow. Growth is then `log(1 + rate g) / rate`
    instead of `g`, and `u^2 - v^2` shrinks by `1 - (rate g)^2` a step. Below alpha = 1e-8 float64 loses that
    difference; `flow` does not.

    Arguments:
        problem: the loss of the products; with `batch`, one that has samples.
        optimizer: from the list of weights to the optimizer, `lambda w: torch.optim.SGD(w, lr=0.1)`.
        log_alpha: the logarithm of the scale of the initialization; any number, zero and above for large ones.
        start: `(u0, v0)`.
        steps: how many.
        every: record the weights after so many steps, and after the last.
        batch: samples a step, drawn at random without replacement; without it, all of them.
        seed: of those draws.

    >>> problem = Problem(gradient=lambda q: q - 4, size=1)
    >>> run = descend(problem, optimizer=lambda w: torch.optim.SGD(w, lr=0.1), log_alpha=-3.0,
    ...               start=(torch.ones(1), torch.zeros(1)), steps=100)
    >>> round(run.products[-1].item(), 3)
    4.0
    """
    u, v = (torch.nn.Parameter(math.exp(log_alpha) * one) for one in start_weights(*start))
    if len(u) != problem.size:
        raise UserError(f"the start has {len(u)} coordinates, the problem {problem.size}: give u0 and v0 of its size")
    if steps < 1 or every < 1:
        raise UserError(f"{steps} steps, recorded every {every}, were asked for: give positive numbers")
    pick = _batches(problem, batch, seed)
    stepper = optimizer([u, v])
    recorded, at, reason = [(u.detach().clone(), v.detach().clone())], [0], ""
    for step in range(1, steps + 1):
        try:
            force = pick(u.detach() * v.detach())
        except NotFinite as error:
            reason = f"step {step}: {error}; was the learning rate too large?"
            break
        u.grad, v.grad = -v.detach() * force, -u.detach() * force
        stepper.step()
        if step % every == 0 or step == steps:
            recorded.append((u.detach().clone(), v.detach().clone()))
            at.append(step)
    us, vs = (torch.stack(one) for one in zip(*recorded, strict=True))
    return Descent(
        problem, log_alpha=log_alpha, steps=torch.tensor(at), weights=(us, vs), rate=_rate(stepper), reason=reason
    )


def _batches(problem: Problem, batch: int | None, seed: int) -> Callable[[Tensor], Tensor]:
    """The force of each step: on everything, or on samples drawn for it."""
    if batch is None:
        return problem.force
    if problem.sample_gradient is None or problem.samples is None:
        raise UserError(
            "this problem has no samples to draw from: give sample_gradient and samples, or leave batch out"
        )
    if not 1 <= batch <= problem.samples:
        raise UserError(
            f"batches of {batch} were asked for out of {problem.samples} samples: give 1 to {problem.samples}"
        )
    generator, one, count = torch.Generator().manual_seed(seed), problem.sample_gradient, problem.samples

    def force(products: Tensor) -> Tensor:
        drawn = -one(products, torch.randperm(count, generator=generator)[:batch])
        if not bool(drawn.isfinite().all()):
            raise NotFinite("the gradient of a batch is not finite")
        return drawn

    return force


def _rate(optimizer: torch.optim.Optimizer) -> float | None:
    """The time that a step takes, where the optimizer is a discrete gradient flow."""
    group, *others = optimizer.param_groups
    if others or not isinstance(optimizer, torch.optim.SGD):
        return None
    changed = any(group[one] for one in ("momentum", "weight_decay", "maximize"))
    return None if changed else float(group["lr"])
