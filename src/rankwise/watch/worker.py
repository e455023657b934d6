"""A thread on which snapshots become numbers, so that training does not wait for them."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import torch

# How far the worker's priority lies below the training's, in the system's own steps.
POLITENESS = 5


def alone() -> None:
    """Let torch compute on one core in this thread, and after all others: the cores belong to the training.

    Torch keeps the number for each thread, but gives threads that are begun later the one that was set last, whoever
    set it: so another thread sets it back.
    """
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    other = threading.Thread(target=torch.set_num_threads, args=(usual,))
    other.start()
    other.join()
    # And where a thread has a priority of its own, it steps back: training in step on all cores suffers from a third.
    if sys.platform == "linux":
        with suppress(OSError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + POLITENESS))


class Worker:
    """Runs tasks one after another on a thread of one core; a task sees to its own errors.

    Its thread ends with the process at the latest. In a forked child there is none, and tasks are refused.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._open = 0
        self._process = os.getpid()
        self._thread: threading.Thread | None = None

    def do(self, task: Callable[[], None]) -> None:
        """Run a task after those that were given before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rankwise-monitor", daemon=True)
            self._thread.start()
        with self._idle:
            self._open += 1
        self._tasks.put(task)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until nothing is left to do, at most some seconds; returns whether that is so."""
        if self._process != os.getpid():
            return True
        with self._idle:
            return self._idle.wait_for(lambda: self._open == 0, seconds)

    def close(self) -> None:
        """Finish what there is to do, and end the thread."""
        if self._thread is not None and self._process == os.getpid():
            self._tasks.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        alone()
        with torch.no_grad():
            while (task := self._tasks.get()) is not None:
                try:
                    with suppress(Exception):
                        task()
                finally:
                    del task
                    with self._idle:
                        self._open -= 1
                        self._idle.notify_all()
