"""One way to integrate a flow: scipy's LSODA step by step, torch at both ends, and whatever was reached kept."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankwise.errors import require
from rankwise.theory.problem import NotFinite

if TYPE_CHECKING:
    from jaxtyping import Float

MOST_STEPS = 200_000


@dataclass(frozen=True)
class Trajectory:
    """A solution of `dx/dt = slope(x)`, at the solver's own steps and, by its interpolants, in between.

    Arguments:
        times: where the solver stepped, from zero.
        states: the solution there.
        failure: why it ended before its end, or None.
        not_finite: whether that is a slope which is not finite.
        evaluations: how often the slope was asked for by the solver.
    """

    times: Float[Tensor, " steps"]
    states: Float[Tensor, "steps p"] = field(repr=False)
    failure: str | None = field(kw_only=True)
    not_finite: bool = field(kw_only=True)
    evaluations: int = field(kw_only=True)
    _dense: Any = field(kw_only=True, repr=False)

    def at(self, times: Float[Tensor, " n"]) -> Float[Tensor, "n p"]:
        """The solution at any times between the first and the last."""
        if self._dense is None:
            return self.states[:1].expand(len(times), -1)
        return torch.from_numpy(self._dense(times.numpy()).T.copy())


def integrate(
    slope: Callable[[Tensor], Tensor],
    start: Float[Tensor, " p"],
    *,
    until: float,
    jacobian: Callable[[Tensor], Tensor],
    tolerance: float,
    stop: Callable[[float, Tensor], bool] | None = None,
    most_steps: int = MOST_STEPS,
    keep: bool = True,
) -> Trajectory:
    """Integrate an autonomous flow from time 0.

    LSODA changes between Adams' methods and backward differentiation as the flow turns stiff: on a plateau its steps
    are as long as the plateau.

    Arguments:
        slope: the right-hand side.
        start: the state at time 0.
        until: the last time; infinity where only `stop` ends it.
        jacobian: the derivative of the slope.
        tolerance: relative and absolute, for each component.
        stop: asked after every step, with its time and state.
        most_steps: more of them are a failure.
        keep: whether to keep what lies between the steps.
    """
    integrators = require("scipy.integrate", extra="theory")
    solver = integrators.LSODA(
        lambda _, state: slope(torch.tensor(state)).numpy(),
        0.0,
        start.numpy(),
        until if math.isfinite(until) else 1e300,
        rtol=max(tolerance, 1e-13),
        atol=tolerance,
        jac=lambda _, state: jacobian(torch.tensor(state)).numpy(),
    )
    times, states, pieces, failure, not_finite = [0.0], [start.clone()], [], None, False
    while solver.status == "running":
        if len(times) > most_steps:
            failure = f"{most_steps} steps did not suffice"
            break
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                solver.step()
        except NotFinite as error:
            failure, not_finite = str(error), True
            break
        if solver.status == "failed":
            said = f": {caught[-1].message}" if caught else ""
            failure = f"the solver could not step beyond t = {times[-1]:.6g}{said}"
            break
        times.append(float(solver.t))
        states.append(torch.tensor(solver.y))
        if keep:
            pieces.append(solver.dense_output())
        if stop is not None and stop(times[-1], states[-1]):
            break
    dense = integrators.OdeSolution(times, pieces) if pieces else None
    return Trajectory(
        torch.tensor(times, dtype=torch.float64),
        torch.stack(states),
        failure=failure,
        not_finite=not_finite,
        evaluations=int(solver.nfev),
        _dense=dense,
    )
