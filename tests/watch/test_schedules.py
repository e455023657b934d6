from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rankwise.errors import UserError
from rankwise.watch.meter import Meter
from rankwise.watch.schedules import (
    Either,
    Every,
    EverySeconds,
    LogSpaced,
    LossPlateau,
    Moment,
    Overhead,
    RankChange,
    Schedule,
)

RANKS = {step: 60 - 20 * math.tanh((step - 300) / 60) for step in range(2000)}


def moment(step: int, last: list[int]) -> Moment:
    return Moment(
        step,
        now=0.7 * step,
        loss=lambda: 2 + 3 * math.exp(-step / 80),
        measured=lambda _: RANKS[last[-1]] if last else None,
    )


def taken(schedule: Schedule, steps: range, last: list[int] | None = None) -> list[int]:
    """The steps at which snapshots are taken."""
    last = [] if last is None else last
    for step in steps:
        if schedule.due(moment(step, last)):
            schedule.taken(moment(step, last))
            last.append(step)
    return last


MAKE: dict[str, Callable[[], Schedule]] = {
    "every": lambda: Every(7),
    "log": lambda: LogSpaced(5),
    "plateau": lambda: LossPlateau(patience=50),
    "change": lambda: RankChange(shortest=3, longest=100),
    "several": lambda: LogSpaced(3) | Every(90) | RankChange() | LossPlateau(patience=20),
}


@pytest.mark.parametrize("name", MAKE)
@given(stop=some.integers(1, 900))
def test_an_interruption_changes_nothing(name, stop):
    whole = taken(MAKE[name](), range(1000))
    first = MAKE[name]()
    last = taken(first, range(stop))
    second = MAKE[name]()
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    assert taken(second, range(stop, 1000), last) == whole


def test_the_clock():
    assert taken(EverySeconds(9.9), range(60)) == [15, 30, 45]


def test_time_in_which_nothing_ran_does_not_count():
    schedule = EverySeconds(10)
    assert [schedule.due(Moment(step, now=100.0 + step)) for step in (0, 4, 6)] == [False, False, False]
    again = EverySeconds(10)
    again.load_state_dict(schedule.state_dict())
    assert [again.due(Moment(step, now=5e6 + step)) for step in (7, 10, 11)] == [False, False, True]


@given(per_decade=some.integers(1, 30))
def test_steps_on_a_logarithmic_axis(per_decade):
    steps = [step for step in range(10_001) if LogSpaced(per_decade).due(Moment(step))]
    expected = sorted({0} | {round(10 ** (place / per_decade)) for place in range(4 * per_decade + 1)})
    assert steps == expected


def test_a_plateau_is_noticed_once_and_the_next_one_again():
    losses = [5.0] * 10 + [3.0] * 100 + [1.0] * 100
    schedule = LossPlateau(patience=30, every=1, by=0.05, smooth=1.0)
    due = [step for step, loss in enumerate(losses) if schedule.due(Moment(step, loss=lambda loss=loss: loss))]
    assert due == [10 + 30, 110 + 30]


def test_losses_are_read_no_more_often_than_asked():
    read = []
    schedule = LossPlateau(every=10)
    for step in range(31):
        schedule.due(Moment(step, loss=lambda step=step: read.append(step) or float("nan")))
    assert read == [0, 10, 20, 30]
    assert schedule.state_dict()["best"] is None, "a loss that is no number is none"


def test_snapshots_crowd_where_ranks_move():
    steps = taken(RankChange(shortest=5, longest=60, by=0.02), range(1500))
    moving = [step for step in steps if 200 <= step < 400]
    resting = [step for step in steps if 1000 <= step < 1200]
    assert len(moving) >= 4 * max(1, len(resting))


def test_watching_costs_no_more_than_its_share():
    """A snapshot costs 3 steps, and one percent is allowed: one in 300 steps."""
    schedule, due = Overhead(0.01), []
    for step in range(1000):
        here = Moment(step, cost=0.3 if due else None, step_seconds=0.1 if step > 5 else None)
        if schedule.due(here):
            schedule.taken(here)
            due.append(step)
    assert due == [0, 300, 600, 900]


def test_what_was_measured_before_an_interruption_is_measured_again():
    schedule = Overhead(0.01)
    schedule.taken(Moment(5))
    again = Overhead(0.01)
    again.load_state_dict(schedule.state_dict())
    assert again.due(Moment(6))


def test_joined_schedules_are_one():
    joined = Every(2) | (Every(3) | Every(5))
    assert isinstance(joined, Either)
    assert len(joined.parts) == 3
    assert [step for step in range(11) if joined.due(Moment(step))] == [0, 2, 3, 4, 5, 6, 8, 9, 10]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Every(0), "every=0 is no number of steps"),
        (lambda: Every(2.5), r"every=2.5 is no number of steps"),  # pyright: ignore[reportArgumentType]
        (lambda: LogSpaced(0), "per_decade=0: give"),
        (lambda: EverySeconds(0), "seconds=0: give a time above zero"),
        (lambda: RankChange(shortest=5, longest=2), "shortest=5, longest=2: give two numbers"),
        (lambda: Overhead(0.0), r"overhead=0.0: give a share"),
    ],
)
def test_bad_numbers_are_one_line(make, says):
    with pytest.raises(UserError, match=says):
        make()


def test_the_meter_adds_up(monkeypatch):
    """A training that makes a step a second, a monitor that takes a tenth of one and a worker that takes two."""
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    meter = Meter(worker_share=0.5)
    assert (meter.cost, meter.step_seconds, meter.overhead) == (None, None, None)
    for _ in range(11):
        entered = meter.entered()
        clock[0] += 0.1
        assert meter.leaves(entered) == pytest.approx(0.1)
        meter.snapshot(0.1, 2.0)
        clock[0] += 1.0
    assert meter.step_seconds == pytest.approx(1.0)
    assert meter.cost == pytest.approx(0.1 + 0.5 * 2.0)
    assert meter.overhead == pytest.approx((11 * 0.1 + 0.5 * 22.0) / 10)
