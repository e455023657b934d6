"""How fast the gap closes, direction by direction, once factors are near their equilibrium."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.factorized.convention import Convention
from rankwise.theory.factorized.solving import State, solved
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@dataclass(frozen=True)
class GapRates(Experiment):
    """The rate at which the gap of each singular direction falls, `-d log(gap) / dt`.

    Arguments:
        rates: `4 lam` where the target's value is above `lam` (live), `2 (lam + s)` where it is below (dead, `2 lam` at
            zero), beside the flow's at its end.
        amplitudes: the singular value that each direction ends at: `max(s - lam, 0)`, beside the flow's.
        live: which directions are.
    """

    rates: SideBySide
    amplitudes: SideBySide
    live: Bool[Tensor, " k"] = field(kw_only=True)


def gap_rates(
    values: Float[Tensor, " k"],
    *,
    decay: float,
    convention: Convention = Convention.HALVED,
    until: float | None = None,
) -> GapRates:
    """The flow of each pair of amplitudes `(a, b)` on `(a b - s)^2 / 2` with decay, beside its late rates.

    The flow is followed in `a + b` and `log(a - b)`, where nothing cancels however balanced the pair becomes. On a plot
    of the gap the slope is therefore between `2 lam` and `4 lam`, not the `lam` that bounds through `sqrt|D|` suggest.

    Arguments:
        values: the target's singular values `s`, none of them equal to the threshold `lam`.
        decay: the coefficient, read by the convention.
        convention: whether the penalty carries a half.
        until: the last time; long enough to settle by default.

    >>> found = gap_rates(torch.tensor([1.0, 0.125, 0.0]), decay=0.25)
    >>> found.rates.predicted.tolist(), found.rates.relative_error < 1e-3
    ([1.0, 0.75, 0.5], True)
    """
    s = torch.as_tensor(values, dtype=torch.float64)
    pressure = convention.pressure(decay)
    if not pressure:
        raise UserError("a decay of 0 was given: nothing falls without it; give a positive one")
    if s.ndim != 1 or bool((s < 0).any()) or not len(s):
        raise UserError(f"values of shape {tuple(s.shape)} were given: give a list of singular values, none negative")
    distance = (s - pressure).abs()
    if bool((distance < 1e-3 * pressure).any()):
        raise UserError(
            f"a singular value equals the threshold {pressure:g}, where directions die algebraically and have no rate: "
            "move it or the decay"
        )
    last = until if until is not None else 25.0 / float(distance.min().clamp(max=pressure))

    def slope(state: State) -> State:
        total, log_difference = state
        missing = s - (total.square() - (2 * log_difference).exp()) / 4
        return (missing - pressure) * total, -(missing + pressure)

    times = torch.tensor([0.0, 0.9 * last, last], dtype=torch.float64)
    total, log_difference = solved(slope, (torch.full_like(s, 1.5), torch.full_like(s, -0.5)), times)
    live = s > pressure
    ended = (total[-1].square() - (2 * log_difference[-1]).exp()) / 4
    return GapRates(
        SideBySide(
            torch.where(live, 4 * pressure, 2 * (pressure + s)),
            simulated=-2 * (log_difference[2] - log_difference[1]) / (times[2] - times[1]),
        ),
        SideBySide((s - pressure).clamp_min(0), simulated=ended),
        live=live,
    )
