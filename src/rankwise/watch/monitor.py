"""Watching the products of a model while somebody trains it."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from operator import index
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from rankwise.errors import UserError
from rankwise.product.catalogue import find_measure
from rankwise.sites.sites import Sites
from rankwise.sites.source import shapes_of
from rankwise.text import printable
from rankwise.watch.alarms import Alarm, Alarms, RunStopped, in_short
from rankwise.watch.arguments import OnAlarm, checked_reaction, schedule_of, selected, unwrapped, watch_of
from rankwise.watch.capture import PATIENCE_SECONDS, Capture, Copies, live
from rankwise.watch.compute import Plan
from rankwise.watch.decay import DecayCount
from rankwise.watch.heading import heading, site_records
from rankwise.watch.meter import Meter
from rankwise.watch.recorder import Outcome, Recorder, Taken, as_number
from rankwise.watch.rows import rows_at
from rankwise.watch.schedules import Moment, Schedule
from rankwise.watch.start import open_start, plain_name
from rankwise.watch.store import RunStore, create, reopen
from rankwise.watch.survey import ROWS, RUN, START
from rankwise.watch.worker import Worker

DEFAULT_MEASURES = ("effective_rank", "stable_rank", "nuclear_norm", "frobenius_norm", "operator_norm")

log = logging.getLogger("rankwise")


class Sink(Protocol):
    """Anything that takes the numbers of each snapshot elsewhere."""

    def write(self, outcome: Outcome) -> None:
        """Take a snapshot; called on the training's thread, in the order of the steps."""
        ...


class Monitor:
    """Records the spectra, measures, balance and change of a model's products while it is trained.

    `step` belongs behind the optimizer's step. It copies the watched parameters when a snapshot is due, and returns;
    a thread of one core computes and writes. Whatever goes wrong there or here becomes a line in the log of the
    program and a gap in the run: training is never interrupted, but by an alarm that was told to. Where several
    processes train together, the first one records.

    Arguments:
        model: any module, compiled or wrapped or not.
        run: the directory that the run is written to; see docs/run-format.md.
        every: how many steps apart, or a schedule.
        overhead: instead, the share of the training's time that watching may take; half a percent by default.
        sites: what to watch, by default every product of two factors or more.
        measures: of every product and change, by their names in `rankwise.MEASURES`.
        keep: "spectra", or "measures" alone, which take less room.
        base: what changes are measured from: "init" for the model as it is now, a checkpoint, or None for no changes.
        optimizer: whose accumulated decay, predicted balance and effective nuclear coefficient are recorded too.
        gradients: whether the first-order change of each product under its factors' gradients is recorded too.
        alarms: the thresholds, or None for no alarms.
        on_alarm: "log", "stop" to raise `RunStopped` from a later `step`, or a function to call there.
        sinks: where else the numbers of each snapshot go, a terminal's `Panel` for instance.
        resume: go on with a run that exists, from the step that `step` is called with first.
        config: what to keep with the run, by default the model's own configuration.
        tolerance: the error of a singular value that will do, as a share of the largest.

    >>> import tempfile
    >>> from rankwise.sites.find import find
    >>> model = nn.Sequential(nn.Linear(4, 4))
    >>> with tempfile.TemporaryDirectory() as folder, Monitor(model, run=folder, every=1, sites=find(model)) as monitor:
    ...     for step in range(3):
    ...         monitor.step(step)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        run: str | Path,
        every: int | Schedule | None = None,
        overhead: float | None = None,
        sites: Sites | None = None,
        measures: Iterable[str] = DEFAULT_MEASURES,
        keep: Literal["spectra", "measures"] = "spectra",
        base: str | Path | None = "init",
        optimizer: Any = None,
        gradients: bool = False,
        alarms: Alarms | None = Alarms(),  # noqa: B008 - frozen
        on_alarm: OnAlarm = "log",
        sinks: Iterable[Sink] = (),
        resume: bool = False,
        config: Mapping[str, Any] | None = None,
        tolerance: float = 1e-6,
    ) -> None:
        self.folder, self.model = Path(run), unwrapped(model)
        self.schedule = schedule_of(every, overhead)
        self.sites = selected(self.model, sites)
        self.on_alarm, self.sinks, self.gradients = checked_reaction(on_alarm), tuple(sinks), gradients
        names = tuple(find_measure(name).name for name in measures)
        watch = watch_of(alarms, names)
        if keep not in ("spectra", "measures"):
            raise UserError(f"keep={keep!r}: give 'spectra', or 'measures' to keep no spectra")
        self._last: int | None = None
        self._has_begun = self._was_loaded = False
        # A run records its first step in any case: what follows is compared with it.
        self._is_first = True
        self._process = os.getpid() if _is_first_process() else None
        if self._process is None:
            return
        parameters = [name for site in self.sites for name in site.parameters]
        self._capture, self._gradients = Capture(parameters), Capture(parameters)
        # A run that is gone back behind its first snapshot starts anew from here.
        self._here = _copied(self.model, parameters) if base == "init" else None
        start = None if base is None or base == "init" else open_start(base, parameters)
        device = next((each.device for each in live(self.model, parameters).values()), torch.device("cpu"))
        settings = {
            "every": repr(self.schedule),
            "tolerance": tolerance,
            "gradients": gradients,
            "alarms": repr(alarms),
        }
        self._count = None if optimizer is None else DecayCount(optimizer, self.model)
        head = heading(
            measures=names,
            keep=keep,
            base=None if base is None else str(base),
            optimizer=optimizer is not None,
            settings=settings,
            config=config,
            model=self.model,
        )
        store = self._opened(head, resume=resume)
        self._base = base
        self._meter = Meter(1 / torch.get_num_threads() if device.type == "cpu" else 0.0)
        plan = Plan(
            sites=self.sites,
            measures=names,
            tolerance=tolerance,
            keep=keep,
            start=None if start is None else start.checkpoint,
            names={} if start is None else start.names,
        )
        self._recorder = Recorder(store, plan, watch, self._meter)
        self._worker = Worker()
        # At the end of the process too, and when nobody holds the monitor any more.
        self._finish = weakref.finalize(self, _finish, self._worker, self._recorder, self._count)

    def step(self, step: int, *, loss: float | Tensor | None = None) -> None:
        """Tell that a step of the optimizer was made; records a snapshot where one is due.

        Arguments:
            step: its number, which rises.
            loss: its loss, kept with the snapshot.
        """
        if not self._is_open:
            return
        entered = self._meter.entered()
        try:
            self._step(step, loss)
        except RunStopped:
            raise
        except Exception as error:
            self._lose(step, f"{type(error).__name__}: {error}")
        finally:
            self._meter.leaves(entered)

    @property
    def overhead(self) -> float | None:
        """What watching has cost so far, as a share of the training's own time; None before it was measured."""
        return self._meter.overhead if self._process is not None else None

    def state_dict(self) -> dict[str, Any]:
        """What belongs into a training checkpoint, so that a run goes on exactly: schedule and accumulated decay.

        Waits until every snapshot is on the disk, so that none is missing in a run that goes on from the checkpoint.
        """
        if self._process is None:
            return {}
        if self._is_open and not self._worker.wait(PATIENCE_SECONDS):
            self._recorder.say("a checkpoint is made while snapshots before it are still being written")
        return self._state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, before the first step; without it, from what the run itself knows."""
        if self._process is None:
            return
        self._was_loaded = True
        self.schedule.load_state_dict(state.get("schedule", {}))
        if self._count is not None:
            self._count.load_state_dict(state.get("count", {}))

    def flush(self) -> None:
        """Wait until every snapshot taken so far is on the disk."""
        if self._is_open:
            self._worker.wait()

    def close(self) -> None:
        """Finish what is being computed and written; steps are ignored from here on."""
        if self._is_open:
            self._finish()
            self._deliver(may_stop=False)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Monitor({printable(self.folder)}, {self.schedule!r}, {len(self.sites)} sites)"

    @property
    def _is_open(self) -> bool:
        """Whether this process records, and still does; a forked child does not."""
        return self._process is not None and self._process == os.getpid() and self._finish.alive

    def _step(self, step: int, loss: float | Tensor | None) -> None:
        if isinstance(step, bool) or not hasattr(step, "__index__") or step < 0:
            self._recorder.say(f"a step is a whole number from 0 on, got {step!r}: it is not recorded")
            return
        step = index(step)
        if not self._has_begun:
            self._has_begun = True
            self._begin(step)
        self._deliver(may_stop=True)
        if self._last is not None and step <= self._last:
            self._recorder.say(f"step {step} came after step {self._last}: steps have to rise, it is not recorded")
            return
        self._last = step
        moment = Moment(
            step,
            loss=lambda: as_number(loss),
            measured=self._measured,
            cost=self._meter.cost,
            step_seconds=self._meter.step_seconds,
        )
        is_due = self.schedule.due(moment)
        if is_due or self._is_first:
            self._is_first = False
            self._take(moment, loss)

    def _take(self, moment: Moment, loss: float | Tensor | None) -> None:
        began = time.perf_counter()
        self.schedule.taken(moment)
        state = self._state()
        copies = self._capture.take(self.model)
        gradients: Copies | None = None

        def release() -> None:
            self._capture.release(copies)
            if gradients is not None:
                self._gradients.release(gradients)

        try:
            gradients = self._gradients.take(self.model, gradients=True) if self.gradients else None
            implied = {} if self._count is None else self._count.observe(self.sites)
            # The training may write its next loss into the same memory.
            loss = loss.detach().clone() if isinstance(loss, Tensor) else loss
        except BaseException:
            release()
            raise
        seconds = time.perf_counter() - began
        taken = Taken(moment.step, time.time(), loss, copies, gradients, implied, state, seconds, release)
        recorder = self._recorder
        self._worker.do(lambda: recorder.record(taken))

    def _state(self) -> dict[str, Any]:
        state = {"schedule": self.schedule.state_dict()}
        if self._count is not None:
            state["count"] = self._count.state_dict()
        return {key: value for key, value in state.items() if value}

    def _opened(self, head: Mapping[str, Any], *, resume: bool) -> RunStore:
        try:
            sites = site_records(self.sites, shapes_of(self.model))
            if not (resume and (self.folder / RUN).exists()):
                return create(self.folder, head, sites, start=self._here)
            store = reopen(self.folder, head, sites)
        except BaseException:
            if self._count is not None:
                self._count.remove()
            raise
        for dropped in store.dropped:
            log.warning("%s: dropped what is not safe: %s", self.folder, dropped)
        return store

    def _begin(self, step: int) -> None:
        """At the first step it is known where the run goes on."""
        store = self._recorder.store
        had_entries = bool(store.entries)
        if gone := store.rewind(step):
            log.info("%s: went back to step %d, %d snapshots are taken anew", self.folder, step, gone)
        if had_entries and not store.entries and self._here is not None:
            store.keep_start(self._here)
        self._here = None
        if self._base == "init":
            start = open_start(self.folder / START, self._capture.names)
            self._recorder.plan = replace(self._recorder.plan, start=start.checkpoint, names=start.names)
        snapshots = [entry for entry in store.entries if entry.kind == "snapshot"]
        if not snapshots:
            return
        self._is_first = False
        if not self._was_loaded:
            self.load_state_dict(snapshots[-1].state)
        with (self.folder / ROWS).open("rb") as file:
            first, last = (
                rows_at(file, *entry.rows, store.heading["columns"]) for entry in (snapshots[0], snapshots[-1])
            )
            self._recorder.go_on(first, last, snapshots[-1].state)

    def _deliver(self, *, may_stop: bool) -> None:
        """Hand on what the worker has found: to sinks, to the log, to whoever listens to alarms."""
        outcomes = self._recorder.outcomes
        while outcomes:
            outcome = outcomes.popleft()
            for sink in self.sinks:
                try:
                    sink.write(outcome)
                except Exception as error:
                    self._recorder.say(f"{type(sink).__name__} failed: {type(error).__name__}: {error}")
            for line in in_short(outcome.alarms):
                log.warning("step %d: %s", outcome.step, line)
            for alarm in outcome.alarms:
                self._tell(alarm, may_stop=may_stop)

    def _tell(self, alarm: Alarm, *, may_stop: bool) -> None:
        try:
            if callable(self.on_alarm):
                self.on_alarm(alarm)
            elif self.on_alarm == "stop" and not alarm.cleared:
                raise RunStopped(f"stopped by an alarm: {alarm.text}")
        except RunStopped:
            if may_stop:
                raise
        except Exception as error:
            self._recorder.say(f"on_alarm failed: {type(error).__name__}: {error}")

    def _measured(self, name: str) -> float | None:
        return self._recorder.means.get(name) if self._worker.wait(PATIENCE_SECONDS) else None

    def _lose(self, step: int, reason: str) -> None:
        """Leave a gap, behind the snapshots that are still being computed."""
        recorder, now = self._recorder, time.time()
        with suppress(Exception):
            self._worker.do(lambda: recorder.gap(step, now, reason))


def _is_first_process() -> bool:
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def _copied(model: nn.Module, names: Iterable[str]) -> dict[str, Tensor]:
    return {plain_name(name): tensor.clone() for name, tensor in live(model, names).items()}


def _finish(worker: Worker, recorder: Recorder, count: DecayCount | None) -> None:
    worker.close()
    with suppress(Exception):
        if count is not None:
            count.remove()
    with suppress(Exception):
        recorder.store.close()
    if recorder.plan.start is not None:
        with suppress(Exception):
            recorder.plan.start.close()
