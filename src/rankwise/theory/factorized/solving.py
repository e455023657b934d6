"""Flows of several matrices at once, solved by scipy to ten digits and more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError, require

if TYPE_CHECKING:
    from jaxtyping import Float

State = tuple[Tensor, ...]
TOLERANCE = 1e-11


def solved(
    slope: Callable[[State], State],
    start: Sequence[Tensor],
    times: Float[Tensor, " n"],
    *,
    tolerance: float = TOLERANCE,
    method: str = "DOP853",
) -> State:
    """The solution of `dx/dt = slope(x)` for a tuple of tensors, at given times from 0 on.

    Arguments:
        slope: the right-hand side.
        start: the tensors at time 0.
        times: when the solution is wanted.
        tolerance: relative.
        method: scipy's; "LSODA" where time is long against the fastest rate.

    Returns:
        each tensor at every time, `[n, *shape]`.

    >>> (found,) = solved(lambda x: (-x[0],), [torch.ones(1).double()], torch.tensor([0.0, 1.0]).double())
    >>> round(found[1].item(), 10)
    0.3678794412
    """
    shapes = [one.shape for one in start]
    sizes = [one.numel() for one in start]

    def split(flat: Tensor) -> State:
        parts = flat.split(sizes)
        return tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))

    def right_hand_side(_: float, flat) -> object:
        return torch.cat([one.reshape(-1) for one in slope(split(torch.tensor(flat)))]).numpy()

    answer = require("scipy.integrate", extra="theory").solve_ivp(
        right_hand_side,
        (0.0, float(times[-1])),
        torch.cat([one.reshape(-1) for one in start]).numpy(),
        method=method,
        t_eval=times.numpy(),
        rtol=max(tolerance, 1e-13),
        atol=tolerance * 1e-3,
    )
    if not answer.success:
        raise UserError(
            f"the flow could not be followed beyond t = {answer.t[-1] if len(answer.t) else 0:.6g} of "
            f"{float(times[-1]):.6g} ({answer.message}): is the loss bounded below, and smooth?"
        )
    path = torch.tensor(answer.y.T)
    return tuple(part.reshape(len(times), *shape) for part, shape in zip(path.split(sizes, dim=1), shapes, strict=True))


def moments(until: float, points: int) -> Float[Tensor, " n"]:
    """Equally spaced times from 0 to the last one.

    >>> moments(1.0, 3).tolist()
    [0.0, 0.5, 1.0]
    """
    if not 0 < until < float("inf"):
        raise UserError(f"until = {until} was given: give the last time, a positive number")
    if points < 2:
        raise UserError(f"{points} points were asked for: give at least 2, the first and the last time")
    return torch.linspace(0.0, until, points, dtype=torch.float64)


def minimized(
    function: Callable[[State], Tensor], start: Sequence[Tensor], *, most_steps: int = 20_000
) -> tuple[State, float]:
    """A local minimum of a smooth function of several tensors, and the largest entry of its gradient there.

    >>> (found,), residual = minimized(lambda x: (x[0] - 3).square().sum(), [torch.zeros(2).double()])
    >>> found.tolist(), residual < 1e-9
    ([3.0, 3.0], True)
    """
    shapes = [one.shape for one in start]
    sizes = [one.numel() for one in start]

    def split(flat: Tensor) -> State:
        return tuple(part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True))

    with_gradient = torch.func.grad_and_value(lambda flat: function(split(flat)))

    def evaluated(flat) -> tuple[float, object]:
        gradient, value = with_gradient(torch.tensor(flat))
        return float(value), gradient.numpy()

    optimize = require("scipy.optimize", extra="theory")
    answer = optimize.minimize(
        evaluated,
        torch.cat([one.reshape(-1) for one in start]).numpy(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": most_steps, "maxfun": 2 * most_steps, "ftol": 0.0, "gtol": 1e-13, "maxcor": 30},
    )
    # Line searches stall once the value no longer moves; the equations of the gradient go on from there.
    gradient = torch.func.grad(lambda flat: function(split(flat)))
    hessian = torch.func.jacrev(gradient)
    polished = optimize.root(
        lambda flat: gradient(torch.tensor(flat)).numpy(),
        answer.x,
        jac=lambda flat: hessian(torch.tensor(flat)).numpy(),
        method="lm",
        tol=1e-15,
    )
    candidates = [torch.tensor(one) for one in (answer.x, polished.x)]
    residuals = [float(gradient(one).abs().max()) for one in candidates]
    near = float((candidates[1] - candidates[0]).norm()) <= 1e-3 * (1 + float(candidates[0].norm()))
    chosen = 1 if near and residuals[1] < residuals[0] else 0
    return split(candidates[chosen]), residuals[chosen]
