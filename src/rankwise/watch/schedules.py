"""When a snapshot is due: every n steps, ever more rarely, by the clock, or when something happens."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankwise.errors import UserError


@dataclass(frozen=True)
class Moment:
    """A step of training, as a schedule sees it; what costs something is only computed when it is asked for.

    Arguments:
        step: its number.
        now: seconds on a clock that never goes back.
        loss: reads the loss (on a GPU this waits for it); None where none was given.
        measured: the mean of a measure over the products of the last snapshot; waits for the snapshot.
        cost: what a snapshot costs, in seconds of training; None before one was measured.
        step_seconds: how long a step takes without one; None before some were measured.
    """

    step: int
    now: float = field(default_factory=time.monotonic)
    loss: Callable[[], float | None] = lambda: None
    measured: Callable[[str], float | None] = lambda _: None
    cost: float | None = None
    step_seconds: float | None = None


class Schedule:
    """Says at every step whether a snapshot is due; several are joined by `|`.

    `due` is called once a step, in order; `taken` when a snapshot was taken, for whatever reason. What a schedule has
    to remember to go on after an interruption is its state.
    """

    def due(self, moment: Moment) -> bool:
        raise NotImplementedError

    def taken(self, moment: Moment) -> None:
        """A snapshot was taken at this step."""

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on, in numbers and texts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""

    def __or__(self, other: Schedule) -> Schedule:
        return Either((*_parts(self), *_parts(other)))


@dataclass
class Either(Schedule):
    """Due when any of several schedules is."""

    parts: tuple[Schedule, ...]

    def due(self, moment: Moment) -> bool:
        # All of them are asked: a plateau is noticed by those who look at every loss.
        asked = [part.due(moment) for part in self.parts]
        return any(asked)

    def taken(self, moment: Moment) -> None:
        for part in self.parts:
            part.taken(moment)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for part, kept in zip(self.parts, state.get("parts", ()), strict=False):
            part.load_state_dict(kept)


@dataclass
class Every(Schedule):
    """Due at every multiple of a number of steps.

    >>> [step for step in range(7) if Every(3).due(Moment(step))]
    [0, 3, 6]
    """

    steps: int

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise UserError(f"every={self.steps!r} is no number of steps: give a whole number from 1 on, or a schedule")

    def due(self, moment: Moment) -> bool:
        return moment.step % self.steps == 0


@dataclass
class LogSpaced(Schedule):
    """Due at steps that are evenly spaced on a logarithmic axis, and at step 0.

    Arguments:
        per_decade: how many between a step and ten times that step.

    >>> [step for step in range(101) if LogSpaced(per_decade=4).due(Moment(step))]
    [0, 1, 2, 3, 6, 10, 18, 32, 56, 100]
    """

    per_decade: int = 10

    def __post_init__(self) -> None:
        if self.per_decade < 1:
            raise UserError(f"per_decade={self.per_decade!r}: give the number of snapshots in a decade, from 1 on")

    def due(self, moment: Moment) -> bool:
        if moment.step < 1:
            return moment.step == 0
        place = round(math.log10(moment.step) * self.per_decade)
        return any(round(10 ** (each / self.per_decade)) == moment.step for each in (place - 1, place, place + 1))


@dataclass
class EverySeconds(Schedule):
    """Due when a time has passed since the last snapshot; time during which no training ran does not count.

    >>> schedule = EverySeconds(60)
    >>> [schedule.due(Moment(step, now=25.0 * step)) for step in range(4)]
    [False, False, False, True]
    """

    seconds: float
    _since: float | None = field(default=None, init=False)
    _now: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise UserError(f"seconds={self.seconds!r}: give a time above zero")

    def due(self, moment: Moment) -> bool:
        self._now = moment.now
        if self._since is None:
            self._since = moment.now
        elif self._since < 0:  # Loaded: so much had passed when the run stopped.
            self._since += moment.now
        return moment.now - self._since >= self.seconds

    def taken(self, moment: Moment) -> None:
        self._since = self._now = moment.now

    def state_dict(self) -> dict[str, Any]:
        return {"elapsed": None if self._since is None else self._now - self._since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        elapsed = state.get("elapsed")
        self._since = None if elapsed is None else -float(elapsed)


@dataclass
class LossPlateau(Schedule):
    """Due once when the loss has stopped falling, and again at the next plateau.

    The loss is smoothed over about `smooth` readings. It has stopped when it was not below `(1 - by)` times the best
    one for `patience` steps.

    Arguments:
        patience: how many steps without an improvement make a plateau.
        by: what counts as an improvement, as a share of the best loss.
        every: at which steps the loss is read; on a GPU each reading waits for it.
        smooth: over how many readings.
    """

    patience: int = 500
    by: float = 0.01
    every: int = 10
    smooth: float = 10.0
    _mean: float | None = field(default=None, init=False)
    _best: float = field(default=math.inf, init=False)
    _best_step: int = field(default=0, init=False)
    _told: bool = field(default=False, init=False)

    def due(self, moment: Moment) -> bool:
        if moment.step % self.every or (loss := moment.loss()) is None or not math.isfinite(loss):
            return False
        self._mean = loss if self._mean is None else self._mean + (loss - self._mean) / self.smooth
        if self._mean < self._best - self.by * abs(self._best) or self._best == math.inf:
            self._best, self._best_step, self._told = self._mean, moment.step, False
            return False
        if self._told or moment.step - self._best_step < self.patience:
            return False
        self._told = True
        return True

    def state_dict(self) -> dict[str, Any]:
        best = None if self._best == math.inf else self._best
        return {"mean": self._mean, "best": best, "best_step": self._best_step, "told": self._told}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        best = state.get("best")
        self._mean, self._best = state.get("mean"), math.inf if best is None else best
        self._best_step, self._told = state.get("best_step", 0), state.get("told", False)


@dataclass
class RankChange(Schedule):
    """Due more often while a measure of the products moves: the distance doubles while it rests, and shrinks at once.

    A movement that begins while the distance is long is noticed at its end: `longest` says how late.

    Arguments:
        by: the relative change of the mean from one snapshot to the next that counts as movement.
        shortest, longest: the least and the largest number of steps between two snapshots.
        measure: which one; it has to be among the monitor's.
    """

    by: float = 0.02
    shortest: int = 10
    longest: int = 1000
    measure: str = "effective_rank"
    _interval: int = field(default=0, init=False)
    _last: int | None = field(default=None, init=False)
    _value: float | None = field(default=None, init=False)
    _open: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise UserError(
                f"shortest={self.shortest}, longest={self.longest}: give two numbers of steps from 1 on, in this order"
            )
        self._interval = self.shortest

    def due(self, moment: Moment) -> bool:
        if self._last is None:
            return True
        if moment.step - self._last < self.shortest:
            return False
        if self._open:
            # Asked for no sooner than it matters: by now the last snapshot has been looked at.
            self._open = False
            self._learn(moment.measured(self.measure))
        return moment.step - self._last >= self._interval

    def taken(self, moment: Moment) -> None:
        self._last, self._open = moment.step, True

    def state_dict(self) -> dict[str, Any]:
        return {"interval": self._interval, "last": self._last, "value": self._value, "open": self._open}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._interval = state.get("interval", self.shortest)
        self._last, self._value = state.get("last"), state.get("value")
        self._open = state.get("open", False)

    def _learn(self, value: float | None) -> None:
        before, self._value = self._value, value if value is not None else self._value
        if value is None or before is None:
            return
        moved = abs(value - before) > self.by * abs(before)
        self._interval = self.shortest if moved else min(self.longest, self._interval * 2)


@dataclass
class Overhead(Schedule):
    """Due when training has earned the next snapshot: its measured cost is at most a share of the time since the last.

    Arguments:
        share: the share of training's time that watching may take, 0.005 for half a percent.
    """

    share: float
    _last: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UserError(f"overhead={self.share!r}: give a share of the training's time, 0.005 for half a percent")

    def due(self, moment: Moment) -> bool:
        if self._last is None:
            return True
        if moment.cost is None or moment.step_seconds is None:
            return False
        return (moment.step - self._last) * moment.step_seconds * self.share >= moment.cost

    def taken(self, moment: Moment) -> None:
        # No state: after an interruption, what a snapshot costs there is measured first.
        self._last = moment.step


def _parts(schedule: Schedule) -> tuple[Schedule, ...]:
    return schedule.parts if isinstance(schedule, Either) else (schedule,)
