"""The same greedy skeleton for a matrix: learning `W = U U^T` from a small start adds one eigenvector at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor

from rankwise.errors import UserError, require
from rankwise.theory.integration import integrate
from rankwise.theory.problem import NotFinite

if TYPE_CHECKING:
    from jaxtyping import Float

# An eigenvalue below this share of the first one is no direction of escape.
FLOOR = 1e-7
# The flow is handed to least squares when the factor changes by less than this share in a time unit.
SLOW = 1e-6
# Least squares may move W by this share; a factor that grew by so much has no end.
NEAR, LARGEST = 1e-2, 1e6
# A stage whose gradient ends above this share of the first eigenvalue did not come to rest.
UNSETTLED = 1e-6


@dataclass(frozen=True)
class RankStage:
    """One more direction, and the plateau that follows it.

    Arguments:
        rank: of the factor `U`, one more than before.
        eigenvalue: of `-grad f` at the plateau before, the largest: the speed of escape.
        direction: its eigenvector.
        matrix: the plateau, `W = U U^T`.
        loss: on it.
        residual: the norm of the gradient by `U` there, as a share of the first eigenvalue.
    """

    rank: int
    eigenvalue: float = field(kw_only=True)
    direction: Float[Tensor, " n"] = field(kw_only=True, repr=False)
    matrix: Float[Tensor, "n n"] = field(kw_only=True, repr=False)
    loss: float = field(kw_only=True)
    residual: float = field(kw_only=True)


@dataclass(frozen=True)
class RankPath:
    """The plateaus of growing rank, in order.

    Arguments:
        stages: one for each direction.
        complete: whether it ended with no direction of escape left, and not at the most stages asked for.
        reason: in words.
    """

    stages: tuple[RankStage, ...]
    complete: bool = field(kw_only=True)
    reason: str = field(kw_only=True)

    def table(self) -> Table:
        """A row for each stage."""
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left")
        for name in ("rank", "speed of escape", "loss", "residual"):
            table.add_column(name, justify="right")
        for one in self.stages:
            table.add_row(str(one.rank), f"{one.eigenvalue:.5g}", f"{one.loss:.5g}", f"{one.residual:.0e}")
        table.caption = Text(self.reason)
        return table

    def __rich__(self) -> Table:
        return self.table()


def greedy_low_rank(
    loss: Callable[[Tensor], Tensor], *, size: int, stages: int | None = None, perturbation: float = 1e-4
) -> RankPath:
    """Greedy low-rank learning: the limit of gradient flow on `U`, `W = U U^T`, from an infinitely small start.

    At a plateau the flow leaves along the eigenvector of `-grad f(W)` of the largest positive eigenvalue; it becomes a
    new column of `U`, and `U` is followed to the next stationary point. Against the algorithm for products of vectors
    there is no memory of the plateaus before: the race is decided by the eigenvalues at this one alone.

    Arguments:
        loss: a smooth torch function of the symmetric `W`, `[n, n]` in float64, to a scalar.
        size: `n`.
        stages: at most so many; without it, up to full rank.
        perturbation: the length of a new column before it grows.

    >>> target = torch.diag(torch.tensor([3.0, 2.0, 0.0], dtype=torch.float64))
    >>> path = greedy_low_rank(lambda w: (w - target).square().sum() / 2, size=3)
    >>> [round(stage.eigenvalue, 6) for stage in path.stages], path.complete
    ([3.0, 2.0], True)
    """
    if size < 1 or not perturbation > 0:
        raise UserError(f"size {size} and a perturbation of {perturbation} were given: give positive numbers")
    factor = torch.zeros(size, 0, dtype=torch.float64)
    found: list[RankStage] = []
    first, asked = math.nan, size if stages is None else stages
    while True:
        values, vectors = torch.linalg.eigh(-_checked(_gradient(loss, factor @ factor.mT)))
        speed, direction = float(values[-1]), vectors[:, -1]
        first = first if found else speed
        if not speed > FLOOR * first:
            return RankPath(tuple(found), complete=True, reason="no direction of escape is left: W minimizes the loss")
        if len(found) >= asked:
            said = "full rank" if stages is None else "as many as were asked for"
            return RankPath(tuple(found), complete=False, reason=f"{len(found)} stages, {said}; W can still escape")
        grown = torch.cat([factor, perturbation * math.sqrt(speed) * direction[:, None]], 1)
        try:
            factor, residual = _settled(loss, grown, unit=first)
        except NotFinite as error:
            return RankPath(tuple(found), complete=False, reason=f"stage {len(found) + 1}: {error}")
        matrix = factor @ factor.mT
        if not residual < UNSETTLED * first:
            reason = (
                f"stage {len(found) + 1} does not come to rest (the gradient is {residual:.2g} at a W of norm "
                f"{matrix.norm():.2g}): the loss may have no finite minimum there; add a little decay of W to it"
            )
            return RankPath(tuple(found), complete=False, reason=reason)
        found.append(
            RankStage(
                factor.shape[1],
                eigenvalue=speed,
                direction=direction,
                matrix=matrix,
                loss=float(loss(matrix)),
                residual=residual / first,
            )
        )


def _gradient(loss: Callable[[Tensor], Tensor], matrix: Tensor) -> Tensor:
    found = torch.func.grad(loss)(matrix)
    return (found + found.mT) / 2


def _checked(gradient: Tensor) -> Tensor:
    if not bool(gradient.isfinite().all()):
        raise NotFinite("the gradient is not finite: the loss has no finite minimum there, or divides 0 by 0")
    return gradient


def _settled(loss: Callable[[Tensor], Tensor], factor: Tensor, *, unit: float) -> tuple[Tensor, float]:
    """Where the flow `dU/dt = -grad_U f(U U^T)` from a factor ends, and the size of the gradient there."""
    shape = factor.shape

    def pull(entries: Tensor) -> Tensor:
        u = entries.view(shape)
        return -2 * (_gradient(loss, u @ u.mT) @ u).flatten()

    def slope(entries: Tensor) -> Tensor:
        return _checked(pull(entries))

    jacobian = torch.func.jacrev(pull)
    growing = float(slope(factor.flatten()).norm())

    limit = LARGEST * max(float(factor.norm()), math.sqrt(unit))

    def over(_: float, entries: Tensor) -> bool:
        pace, size = float(slope(entries).norm()), float(entries.norm())
        return size > limit or pace < min(SLOW * unit * size, growing / 2)

    way = integrate(
        slope,
        factor.flatten(),
        until=math.inf,
        jacobian=jacobian,
        tolerance=1e-9,
        stop=over,
        most_steps=20_000,
        keep=False,
    )
    # Rotations of the columns leave W alone, so the equations are singular: least squares does not mind.
    answer = require("scipy.optimize", extra="theory").root(
        lambda entries: slope(torch.tensor(entries)).numpy(),
        way.states[-1].numpy(),
        jac=lambda entries: jacobian(torch.tensor(entries)).numpy(),
        method="lm",
        tol=1e-14,
    )
    settled, flowed = torch.tensor(answer.x).view(shape), way.states[-1].view(shape)
    # Far from where the flow was going it is another stationary point.
    apart = (settled @ settled.mT - flowed @ flowed.mT).norm() / (flowed @ flowed.mT).norm()
    end = settled if float(apart) < NEAR else flowed
    return end, float(slope(end.flatten()).norm())
