"""What watching costs, measured while it happens."""

from __future__ import annotations

import threading
import time
from collections import deque
from statistics import median

# Steps and snapshots that the medians are taken over: the first ones are slower than what follows.
STEPS, SNAPSHOTS = 32, 8
FEWEST_STEPS = 3


class Meter:
    """The seconds of a step and of a snapshot.

    A step is the time from one call of the monitor to the next, without what the monitor itself took. A snapshot costs
    the time on the training's thread and, where the training computes on the processor that the worker computes on,
    the worker's share of it.

    Arguments:
        worker_share: how much of a second of the worker's is taken from the training.
    """

    def __init__(self, worker_share: float) -> None:
        self.worker_share = worker_share
        self._steps: deque[float] = deque(maxlen=STEPS)
        self._costs: deque[float] = deque(maxlen=SNAPSHOTS)
        self._left: float | None = None
        self._total = {"training": 0.0, "here": 0.0, "worker": 0.0}
        self._lock = threading.Lock()

    def entered(self) -> float:
        """The training has made a step; returns the time."""
        now = time.perf_counter()
        if self._left is not None:
            self._steps.append(now - self._left)
            self._total["training"] += now - self._left
        return now

    def leaves(self, entered: float) -> float:
        """The training goes on; returns the seconds that it had to wait."""
        self._left = time.perf_counter()
        self._total["here"] += self._left - entered
        return self._left - entered

    def snapshot(self, here: float, worker: float) -> None:
        """A snapshot is done: the seconds of the training's thread and those that the worker computed."""
        with self._lock:
            self._costs.append(here + self.worker_share * worker)
            self._total["worker"] += worker

    @property
    def step_seconds(self) -> float | None:
        """A step without a snapshot."""
        return median(self._steps) if len(self._steps) >= FEWEST_STEPS else None

    @property
    def cost(self) -> float | None:
        """A snapshot, in seconds of training."""
        with self._lock:
            return median(self._costs) if self._costs else None

    @property
    def overhead(self) -> float | None:
        """What watching has cost so far, as a share of the training's own time."""
        if not self._total["training"]:
            return None
        return (self._total["here"] + self.worker_share * self._total["worker"]) / self._total["training"]
