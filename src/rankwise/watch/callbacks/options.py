"""What a callback is given for the monitor that it will make when training begins."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from rankwise.errors import UserError
from rankwise.watch.monitor import Monitor


@dataclass(frozen=True)
class Options:
    """Arguments of a `Monitor`, known to be ones before anybody trains."""

    values: Mapping[str, Any]

    @classmethod
    def checked(cls, values: Mapping[str, Any], *, by_trainer: Sequence[str]) -> Options:
        """The options, or one line where a name is wrong, missing, or the trainer's to give.

        >>> Options.checked({"run": "runs/a", "evry": 3}, by_trainer=["model"])
        Traceback (most recent call last):
        rankwise.errors.UserError: a monitor has no option 'evry': give run, every, overhead, sites, measures, ...
        """
        known = [name for name in inspect.signature(Monitor).parameters if name not in by_trainer]
        unknown = [name for name in values if name not in known]
        if unknown:
            raise UserError(f"a monitor has no option '{unknown[0]}': give {', '.join(known[:5])}, ...")
        if "run" not in values:
            raise UserError("a monitor needs a directory to write to: give run=")
        return cls(dict(values))

    def monitor(self, model: nn.Module, *, optimizer: Any, resume: bool) -> Monitor:
        """The monitor, now that there is a model."""
        return Monitor(model, optimizer=optimizer, resume=resume, **self.values)
