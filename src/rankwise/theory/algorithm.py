"""The greedy algorithm: what training from an infinitely small initialization does, without an initialization."""

from __future__ import annotations

import math

import torch

from rankwise.errors import UserError
from rankwise.theory.path import Ending, Path, Plateau, Stage
from rankwise.theory.problem import NotFinite, Problem
from rankwise.theory.race import Race, race
from rankwise.theory.settle import Failure, Settled, failed, settle, support_curvature

ENDINGS = {
    Failure.UNBOUNDED: Ending.UNBOUNDED,
    Failure.UNSETTLED: Ending.UNSETTLED,
    Failure.NOT_FINITE: Ending.NOT_FINITE,
}
ADVICE = {
    Failure.UNBOUNDED: "the loss has no finite stationary point there, as cross-entropy on separable data: add "
    "a little decay, problem.with_decay(1e-3), or label smoothing",
    Failure.UNSETTLED: "the minimum may be degenerate (Assumption 4.3): add a little decay, problem.with_decay(1e-6)",
    Failure.NOT_FINITE: "the path up to here stands",
}


def greedy(
    problem: Problem,
    *,
    stages: int | None = None,
    loss_below: float | None = None,
    perturbation: float = 1e-4,
    tolerance: float = 1e-8,
) -> Path:
    """The limit of gradient flow from `alpha (u0, v0)` as alpha goes to zero: which products activate, when, to what.

    In time rescaled by `log(1/alpha)` training is a sequence of plateaus, the first at zero. On a plateau `q` (stage
    A) every idle coordinate drifts, `log_alpha(u_i + v_i) = b_i - (time) g_i(q)`, until the first reaches 0 (its
    product becomes positive) or 2 (negative). There (stage B) it grows in no rescaled time at all, and the flow on the
    support settles at the next plateau; others may leave the support meanwhile, and come back later. Neither alpha
    nor the start matters, as long as `|u0_i|` and `|v0_i|` differ.

    It describes gradient flow, and gradient descent of small steps; not Adam, whose steps do not shrink with the
    gradient, and not networks with kinks.

    Arguments:
        problem: the loss of the products.
        stages: at most so many; without it, until nothing moves.
        loss_below: stop on the first plateau whose loss is below.
        perturbation: the size of `u` at which a newcomer starts stage B, in units of where it may end.
        tolerance: forces below this share of the largest one so far count as zero.

    Returns:
        The path. Where a stage has no end point, or two coordinates tie, it holds the stages before, and says so in
        `ending` and `reason`.

    >>> target = torch.tensor([2.0, -4.0], dtype=torch.float64)
    >>> path = greedy(Problem(gradient=lambda q: q - target, size=2))
    >>> path.times, path.coordinates
    (tensor([0.2500, 0.5000], dtype=torch.float64), (1, 0))
    """
    if stages is not None and stages < 0:
        raise UserError(f"{stages} stages were asked for: give a number that is not negative, or none for all")
    if not 0 < perturbation < 1:
        raise UserError(f"a newcomer was to start at {perturbation}: give a small positive number, such as 1e-4")
    plateau = _beginning(problem)
    start, found = plateau, []
    support, largest = torch.zeros(problem.size, dtype=torch.bool), float(plateau.force.abs().max())
    while True:
        if stages is not None and len(found) >= stages:
            return _path(found, start, Ending.STAGES, f"{stages} stages were asked for")
        if loss_below is not None and plateau.loss < loss_below:
            return _path(found, start, Ending.LOSS, f"the loss is {plateau.loss:.3g}, below {loss_below:g}")
        ahead = race(plateau.force, plateau.log_scale, support, elapsed=plateau.time, floor=tolerance * largest)
        if ahead.winner is None:
            return _path(found, start, Ending.STATIONARY, Ending.STATIONARY.value)
        time = plateau.time + ahead.wait
        if ahead.tied:
            names = ", ".join(problem.name(one) for one in ahead.tied)
            reason = (
                f"coordinates {names} tie at time {time:.6g}: Assumption 4.2 fails, at any alpha they activate together"
            )
            return _path(found, start, Ending.TIED, reason, ahead.tied)
        try:
            settled = _activate(problem, plateau, ahead, perturbation, largest)
            stage = None if settled.failure else _stage(problem, plateau, ahead, settled)
        except NotFinite as error:
            settled, stage = failed(plateau.product, Failure.NOT_FINITE, str(error)), None
        if stage is None:
            assert settled.failure is not None
            reason = (
                f"stage {len(found) + 1} (coordinate {problem.name(ahead.winner)} at time {time:.6g}): "
                f"{settled.reason}; {ADVICE[settled.failure]}"
            )
            return _path(found, start, ENDINGS[settled.failure], reason)
        found.append(stage)
        support, largest = settled.support, max(largest, float(stage.force.abs().max()))
        plateau = Plateau(stage.time, stage.product, stage.log_scale, stage.force, stage.loss)


def _beginning(problem: Problem) -> Plateau:
    """The plateau at zero, and a look at whether the gradient is one of this loss."""
    zero = torch.zeros(problem.size, dtype=torch.float64)
    force = problem.force(zero)
    size = force.norm().item()
    loss = problem.value(zero)
    if problem.loss is not None and size > 0:
        step = 1e-4 * force / size
        rise = problem.value(zero + step) - problem.value(zero - step)
        if rise > 1e-4 * size:
            raise UserError(
                "the loss rises along minus its gradient: give gradient = dL/dq, not the force -dL/dq, and the loss "
                "that it belongs to"
            )
    return Plateau(0.0, zero, torch.ones_like(zero), force, loss)


def _activate(problem: Problem, plateau: Plateau, ahead: Race, perturbation: float, largest: float) -> Settled:
    """Stage B: the plateau with a newcomer of next to nothing, settled."""
    assert ahead.winner is not None
    one = torch.tensor([ahead.winner])
    bend = problem.hessian_block(plateau.product, one, one).abs().item()
    force = plateau.force[ahead.winner].abs().item()
    # The unit of a product is that of force over curvature; where the loss does not bend, that of the others.
    unit = force / bend if bend > 1e-9 * force else float(plateau.product.abs().max()) or 1.0
    products = plateau.product.clone()
    products[ahead.winner] = ahead.sign * perturbation**2 * unit
    return settle(problem, products, largest_force=largest)


def _stage(problem: Problem, plateau: Plateau, ahead: Race, settled: Settled) -> Stage:
    assert ahead.winner is not None
    idle = plateau.product == 0
    log_scale = torch.where(idle, plateau.log_scale - ahead.wait * plateau.force, plateau.log_scale).clamp(0, 2)
    # Snapped to its wall, so that rounding does not pile up over many stages.
    log_scale[ahead.winner] = 0.0 if ahead.sign > 0 else 2.0
    return Stage(
        plateau.time + ahead.wait,
        coordinate=ahead.winner,
        sign=ahead.sign,
        product=settled.products,
        support=tuple(settled.support.nonzero().flatten().tolist()),
        dropped=tuple((~idle & ~settled.support).nonzero().flatten().tolist()),
        margin=ahead.margin,
        runner_up=ahead.runner_up,
        loss=problem.value(settled.products),
        log_scale=log_scale,
        force=problem.force(settled.products),
        curvature=support_curvature(problem, settled.products),
        distance=ahead.wait * math.fabs(plateau.force[ahead.winner].item()),
        place=None if problem.coordinates is None else problem.coordinates[ahead.winner],
    )


def _path(found: list[Stage], start: Plateau, ending: Ending, reason: str, tied: tuple[int, ...] = ()) -> Path:
    return Path(tuple(found), start=start, ending=ending, reason=reason, tied=tied)
