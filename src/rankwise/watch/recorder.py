"""The worker's side of a monitor: from copies of parameters to what is safe on the disk."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rankwise.text import printable
from rankwise.watch.alarms import Alarm, Place, Watch, place_of
from rankwise.watch.capture import Copies
from rankwise.watch.compute import Plan, compute, mean_of
from rankwise.watch.decay import Implied
from rankwise.watch.log import Entry
from rankwise.watch.meter import Meter
from rankwise.watch.rows import Row, read_rows, written
from rankwise.watch.store import RunStore

log = logging.getLogger("rankwise")


@dataclass
class Taken:
    """A snapshot on its way: what was copied of the model at a step.

    Arguments:
        step: its number.
        time: when, in seconds since 1970.
        loss: as it was given; a copy where it is a tensor.
        copies, gradients: of the parameters.
        implied: what the optimizer implies for each site.
        state: of schedule and optimizer, at this step.
        seconds: how long the training waited for this.
        release: gives the memory of the copies back.
    """

    step: int
    time: float
    loss: float | Tensor | None
    copies: Copies
    gradients: Copies | None
    implied: Mapping[str, Implied]
    state: dict[str, Any]
    seconds: float
    release: Callable[[], None]


@dataclass(frozen=True)
class Outcome:
    """A snapshot that is safe, for sinks and for whoever listens to alarms.

    Arguments:
        step: its number.
        time: when it was taken, in seconds since 1970.
        values: a few numbers: the loss, and mean effective ranks by kind of products and changes.
        alarms: what was raised, or is over.
        rows: all its rows, by the columns of the run format.
    """

    step: int
    time: float
    values: Mapping[str, float]
    alarms: Sequence[Alarm]
    rows: Sequence[Row] = field(repr=False)


@dataclass
class Recorder:
    """Computes and writes one snapshot after another; nothing that it calls lets an error out.

    Arguments:
        store: the run.
        plan: what is computed.
        watch: who looks for alarms, or None.
        meter: who counts the costs.
    """

    store: RunStore
    plan: Plan
    watch: Watch | None
    meter: Meter
    outcomes: deque[Outcome] = field(default_factory=deque)
    means: dict[str, float | None] = field(default_factory=dict)
    _start: dict[Place, Row] = field(default_factory=dict)
    _gaps: deque[Entry] = field(default_factory=deque)
    _said: set[str] = field(default_factory=set)
    _streams: dict[torch.device, torch.cuda.Stream] = field(default_factory=dict)

    def go_on(self, first: Iterable[Row], last: Iterable[Row], state: Mapping[str, Any]) -> None:
        """Know what the process before knew: rows of the run's first and last snapshot, and the state at the last."""
        self._start = {place_of(row): row for row in first}
        self._learn(list(last))
        if self.watch is not None:
            self.watch.load_state_dict(state.get("alarms", {}))

    def record(self, taken: Taken) -> None:
        """Compute a snapshot and write it, or leave a gap."""
        began = time.thread_time()
        try:
            try:
                for reason in dict.fromkeys(taken.copies.missing.values()):
                    self.say(reason)
                with self._beside(taken.copies):
                    found = compute(
                        taken.step, self.plan, taken.copies, gradients=taken.gradients, implied=taken.implied
                    )
            finally:
                taken.release()
            self._predict(found.rows)
            self._write(taken, found.rows, found.spectra, began)
        except Exception as error:
            self.gap(taken.step, taken.time, f"{type(error).__name__}: {error}")
        finally:
            self.meter.snapshot(taken.seconds, time.thread_time() - began)

    def gap(self, step: int, now: float, reason: str) -> None:
        """Say why there is no snapshot of a step, once, and leave a gap in the run."""
        self.say(f"no snapshot of step {step}: {reason}")
        self._gaps.append(Entry(step, time=now, kind="gap", reason=printable(reason, limit=300)))
        with suppress(Exception):
            self._write_gaps()

    def say(self, text: str) -> None:
        """Say something once: the same with other numbers is the same."""
        kind = "".join(character for character in text if not character.isdigit())
        if kind not in self._said:
            self._said.add(kind)
            log.warning("%s: %s", self.store.folder, printable(text, limit=400))

    def _write(self, taken: Taken, rows: list[Row], spectra: Mapping[str, Tensor] | None, began: float) -> None:
        loss = as_number(taken.loss)
        columns = self.store.heading["columns"]
        content = written(rows, columns)
        if not self._start:
            # As a process that goes on with this run will read it: what follows may not depend on who computes it.
            self._start = {place_of(row): row for row in read_rows(content, columns)}
        alarms, state = [], taken.state
        if self.watch is not None:
            alarms = self.watch.look(rows, start=self._start, loss=loss)
            if kept := self.watch.state_dict():
                state = {**state, "alarms": kept}
        self._write_gaps()
        entry = Entry(
            taken.step,
            time=taken.time,
            loss=loss if loss is not None and math.isfinite(loss) else None,
            alarms=tuple(alarm.record() for alarm in alarms),
            seconds={"step": round(taken.seconds, 6), "worker": round(time.thread_time() - began, 6)},
            state=state,
        )
        self.store.append(entry, rows=content, spectra=spectra)
        self._learn(rows)
        self.outcomes.append(Outcome(taken.step, taken.time, summary(rows, loss), alarms, rows))

    def _learn(self, rows: Sequence[Row]) -> None:
        self.means = {name: mean_of(rows, name) for name in self.plan.measures}

    def _predict(self, rows: Iterable[Row]) -> None:
        """Beside the imbalance that is measured, what decay alone would have left of the one at the start.

        `|D|_F exp(-2 sum lr lambda)` holds for the concatenation of heads that share a factor, and neither for rotary
        nor for normalized queries and keys.
        """
        rows = list(rows)
        grouped = {row["site"] for row in rows if row["of"] == "group"}
        lawless = {
            site.name
            for site in self.plan.sites
            if site.attention is not None and site.kind == "qk" and (site.attention.rotary or site.attention.norm)
        }
        for row in rows:
            start = self._start.get(place_of(row), row)
            now, then, norm = row.get("decay"), start.get("decay"), start.get("imbalance_norm")
            if now is None or then is None or norm is None or row["site"] in lawless:
                continue
            if row["of"] == "group" or (row["of"] == "product" and row["site"] not in grouped):
                row["imbalance_predicted"] = norm * math.exp(-2 * (now - then))

    def _write_gaps(self) -> None:
        """Gaps that the disk had no room for are written when it has."""
        while self._gaps:
            gap = self._gaps[0]
            if self.store.last_step is None or gap.step > self.store.last_step:
                self.store.append(gap)
            self._gaps.popleft()

    def _beside(self, copies: Copies) -> ExitStack:
        """On every GPU, a stream beside the training's, once the copies are there."""
        beside = ExitStack()
        for device, ready in copies.ready.items():
            stream = self._streams.setdefault(device, torch.cuda.Stream(device))
            stream.wait_event(ready)
            beside.enter_context(torch.cuda.stream(stream))
        return beside


def summary(rows: Sequence[Row], loss: float | None) -> dict[str, float]:
    """The few numbers that other trackers get: the loss, and mean effective ranks by kind of products and changes."""
    found = {} if loss is None else {"loss": loss}
    for of, prefix in (("product", "effective_rank"), ("change", "change_effective_rank")):
        for kind in dict.fromkeys(row["kind"] for row in rows):
            mean = mean_of([row for row in rows if row["kind"] == kind], "effective_rank", of=of)
            if mean is not None:
                found[f"{prefix}/{kind}"] = mean
    return found


def as_number(loss: float | Tensor | None) -> float | None:
    """A loss as a number; of several their mean."""
    if loss is None:
        return None
    return float(loss.detach().float().mean()) if isinstance(loss, Tensor) else float(loss)
