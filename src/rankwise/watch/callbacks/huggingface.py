"""The monitor as a callback of the Trainer of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise.errors import require
from rankwise.files import write_whole
from rankwise.watch.callbacks.options import Options
from rankwise.watch.monitor import Monitor

if TYPE_CHECKING:
    from transformers import TrainerCallback
else:
    try:
        from transformers import TrainerCallback
    except ImportError:  # Whoever makes one is told which extra brings it.
        TrainerCallback = object

STATE = "rankwise.json"


class TrainerMonitor(TrainerCallback):
    """Watches what a `transformers.Trainer` trains: `callbacks=[TrainerMonitor(run="runs/a", every=100)]`.

    The Trainer's optimizer is followed, its checkpoints hold what the run needs to go on, and training that is resumed
    from one goes on with the run.

    Arguments:
        options: everything that `Monitor` takes, by name, but for the model, the optimizer and `resume`.
    """

    def __init__(self, **options: Any) -> None:
        require("transformers", extra="hf")
        self.options = Options.checked(options, by_trainer=("model", "optimizer", "resume"))
        self.monitor: Monitor | None = None
        self._loss: float | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Begin the run, or go on with it."""
        resumed = state.global_step > 0
        self.monitor = self.options.monitor(given["model"], optimizer=given.get("optimizer"), resume=resumed)
        kept = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE
        if resumed and kept.is_file():
            self.monitor.load_state_dict(json.loads(kept.read_text(encoding="utf-8")))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The parameters have moved, and the gradients are still there."""
        if self.monitor is not None:
            self.monitor.step(state.global_step + 1, loss=self._loss)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **given: Any) -> None:
        """The Trainer tells its loss when it logs: a snapshot has the last one that was told."""
        self._loss = (logs or {}).get("loss", self._loss)

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Put what the run needs beside the checkpoint."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.monitor is not None and state.is_world_process_zero and folder.is_dir():
            write_whole(folder / STATE, json.dumps(self.monitor.state_dict()))

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Finish the run."""
        if self.monitor is not None:
            self.monitor.close()
