"""The monitor as a callback of Lightning's Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankwise.errors import require
from rankwise.watch.callbacks.options import Options
from rankwise.watch.monitor import Monitor

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:  # Whoever makes one is told which extra brings it.
        Callback = object


class LightningMonitor(Callback):
    """Watches what a `lightning.Trainer` trains: `callbacks=[LightningMonitor(run="runs/a", every=100)]`.

    The module's optimizer is followed (where it has one), Lightning's checkpoints hold what the run needs to go on, and
    `trainer.fit(..., ckpt_path=...)` goes on with the run.

    Arguments:
        options: everything that `Monitor` takes, by name, but for the model, the optimizer and `resume`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        require("lightning.pytorch", extra="lightning")
        self.options = Options.checked(options, by_trainer=("model", "optimizer", "resume"))
        self.monitor: Monitor | None = None
        self._kept: dict[str, Any] = {}
        self._last = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the run, or go on with it."""
        optimizer = trainer.optimizers[0] if len(trainer.optimizers) == 1 else None
        self._last = trainer.global_step
        self.monitor = self.options.monitor(pl_module, optimizer=optimizer, resume=trainer.global_step > 0)
        if self._kept:
            self.monitor.load_state_dict(self._kept)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A batch is done; where gradients accumulate, not every one is a step."""
        if self.monitor is not None and trainer.global_step > self._last:
            self._last = trainer.global_step
            self.monitor.step(trainer.global_step, loss=outputs.get("loss") if isinstance(outputs, dict) else outputs)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Finish the run."""
        if self.monitor is not None:
            self.monitor.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Finish what there is of the run."""
        self.on_train_end(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """What Lightning puts into its checkpoints."""
        return {} if self.monitor is None else self.monitor.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What Lightning found in one."""
        self._kept = dict(state_dict)
