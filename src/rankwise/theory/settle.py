"""Stage B of the greedy algorithm: a newcomer grows from next to nothing until the products are stationary again."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import require
from rankwise.theory.integration import integrate
from rankwise.theory.log_space import LARGEST_EXPONENT
from rankwise.theory.problem import NotFinite, Problem

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

# A product smaller than this share of the largest one, and shrinking, has left the support.
DEAD = 1e-10
# The flow is handed to Newton's method when the products change by less than this in a newcomer's time unit; when
# Newton's answer is not where the flow was going, the flow goes on to a tenth of it, down to the last.
FIRST_LEVEL, LAST_LEVEL = 1e-2, 1e-12
# Newton's answer may differ from the flow by this share of each product; by ten times that at the first levels,
# where instead it has to be a strict minimum of the support.
NEAR = 5e-3
# The residual of a stationary point, as a share of the largest force.
RESIDUAL = 1e-10
# Over the last levels a flow that settles hardly moves, and one that grows like log(t) moves by a fifth and more.
GROWTH = 0.05


class Failure(Enum):
    """Why a stage has no end point."""

    UNBOUNDED = "unbounded"
    UNSETTLED = "unsettled"
    NOT_FINITE = "not finite"


@dataclass(frozen=True)
class Settled:
    """Where the flow on a support ended.

    Arguments:
        products: stationary on its support; where it failed, where the flow was last.
        support: the coordinates that are not zero.
        failure: why it is not stationary, or None.
        reason: the same in words.
    """

    products: Float[Tensor, " p"]
    support: Bool[Tensor, " p"]
    failure: Failure | None = field(kw_only=True, default=None)
    reason: str = field(kw_only=True, default="")


def settle(
    problem: Problem,
    products: Float[Tensor, " p"],
    *,
    largest_force: float,
    tolerance: float = 1e-6,
    most_steps: int = 20_000,
) -> Settled:
    """Follow `dq_i/dt = 2 |q_i| g_i(q)` from given products to a stationary point.

    It is the flow of `(u, v)` with `u^2 = v^2`: zeros stay zero and signs stay, so it runs in `x = log|q|`, where
    decay to zero is a straight line and the slow start of a newcomer costs nothing.

    Arguments:
        problem: the loss.
        products: where to start; its non-zero entries are the coordinates that move.
        largest_force: the scale of forces, against which a residual is judged.
        tolerance: of the integration.
        most_steps: after which it is given up.
    """
    try:
        flow = _Flow(problem, products, largest_force)
        way = integrate(
            flow.slope,
            products[flow.moving].abs().log(),
            until=float("inf"),
            jacobian=flow.jacobian,
            tolerance=tolerance,
            stop=flow.arrived,
            most_steps=most_steps,
            keep=False,
        )
    except NotFinite as error:
        return failed(products, Failure.NOT_FINITE, str(error))
    if flow.found is not None:
        return flow.found
    last = flow.products(way.states[-1])
    if flow.unbounded:
        return failed(last, Failure.UNBOUNDED, f"the products grow without end (the largest is {last.abs().max():.3g})")
    failure = Failure.NOT_FINITE if way.not_finite else Failure.UNSETTLED
    return failed(last, failure, way.failure or "the flow slows down without coming to rest")


def failed(products: Tensor, failure: Failure, reason: str) -> Settled:
    return Settled(products, products != 0, failure=failure, reason=reason)


class _Flow:
    """The flow on the moving coordinates, and the watch for its end."""

    def __init__(self, problem: Problem, products: Tensor, largest_force: float) -> None:
        self.problem = problem
        self.moving: Int[Tensor, " k"] = products.nonzero().flatten()
        self.signs = products[self.moving].sign()
        self.size = len(products)
        self.largest_force = largest_force
        self.found: Settled | None = None
        self.unbounded = False
        self.level = FIRST_LEVEL
        self.pace = self._slope(products[self.moving].abs().log()).abs().max().item()
        self.before: tuple[float, Tensor] | None = None
        self.at_levels: list[Tensor] = []

    def products(self, x: Float[Tensor, " k"]) -> Float[Tensor, " p"]:
        whole = x.new_zeros(self.size)
        whole[self.moving] = self.signs * x.clamp(max=LARGEST_EXPONENT).exp()
        return whole

    def _slope(self, x: Tensor) -> Tensor:
        return 2 * self.signs * self.problem.force(self.products(x))[self.moving]

    slope = _slope

    def jacobian(self, x: Float[Tensor, " k"]) -> Float[Tensor, "k k"]:
        whole = self.products(x)
        hessian = self.problem.hessian_block(whole, self.moving, self.moving)
        return -2 * self.signs[:, None] * hessian * whole[self.moving]

    def arrived(self, time: float, x: Float[Tensor, " k"]) -> bool:
        """Whether the flow is over: at rest and polished, or beyond hope."""
        if bool((x >= LARGEST_EXPONENT).any()):
            self.unbounded = True
            return True
        if not self._slow(time, x):
            return False
        rates = self._slope(x)
        alive = x > x.max() + torch.log(torch.tensor(DEAD))
        while bool((rates[alive].abs() < self.level * self.pace).all()) and bool((rates[~alive] < 0).all()):
            self.found = self._polished(x, alive)
            self.at_levels.append(x)
            self.level /= 10
            if self.found is not None:
                return True
            if self.level < LAST_LEVEL:
                self.unbounded = self._still_growing()
                return True
        return False

    def _slow(self, time: float, x: Tensor) -> bool:
        """A cheap look at the last step, to spare the gradient on most of them."""
        before, self.before = self.before, (time, x)
        if before is None:
            return False
        rates = (x - before[1]).abs() / (time - before[0])
        alive = x > x.max() + torch.log(torch.tensor(DEAD))
        return bool((rates[alive] < 4 * self.level * self.pace).all())

    def _still_growing(self) -> bool:
        earlier, last = (self.products(x).abs().max() for x in (self.at_levels[-4], self.at_levels[-1]))
        return bool(last > (1 + GROWTH) * earlier)

    def _polished(self, x: Tensor, alive: Tensor) -> Settled | None:
        """The stationary point beside the flow, or None where there is no such point."""
        chosen, signs, guess = self.moving[alive], self.signs[alive], self.signs[alive] * x[alive].exp()
        optimize = require("scipy.optimize", extra="theory")

        def whole(values: Tensor) -> Tensor:
            return x.new_zeros(self.size).index_put((chosen,), values)

        def curvature(values: Tensor) -> Tensor:
            return self.problem.hessian_block(whole(values), chosen, chosen)

        try:
            answer = optimize.root(
                lambda values: self.problem.force(whole(torch.tensor(values)))[chosen].numpy(),
                guess.numpy(),
                jac=lambda values: -curvature(torch.tensor(values)).numpy(),
                tol=1e-15,
            )
            values = torch.tensor(answer.x)
            forces = self.problem.force(whole(values))
        except NotFinite:
            return None
        early = self.level > 1e-7
        near = (values / guess - 1).abs().max().item() <= (10 * NEAR if early else NEAR)
        at_rest = forces[chosen].abs().max().item() <= RESIDUAL * self.largest_force
        left = self.moving[~alive]
        gone = bool((self.signs[~alive] * forces[left] < 0).all())
        if not (near and at_rest and gone and bool((values * signs > 0).all())):
            return None
        if early:
            spectrum = torch.linalg.eigvalsh(_symmetric(curvature(values)))
            if not bool(spectrum[0] > 1e-6 * spectrum[-1]):
                return None
        products = whole(values)
        return Settled(products, products != 0)


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2


def support_curvature(problem: Problem, products: Float[Tensor, " p"]) -> float:
    """The smallest eigenvalue of the loss's second derivative on the support: positive at a strict minimum."""
    support = products.nonzero().flatten()
    if not len(support):
        return float("nan")
    hessian = problem.hessian_block(products, support, support)
    return torch.linalg.eigvalsh(_symmetric(hessian))[0].item()
