"""Where the parameters lie that a run's changes are measured from: its own start, or a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rankwise.errors import UserError
from rankwise.sites.checkpoints import open_checkpoint
from rankwise.sites.checkpoints.checkpoint import Checkpoint
from rankwise.text import printable


@dataclass(frozen=True)
class Start:
    """A checkpoint, and under which name it has a parameter where that differs."""

    checkpoint: Checkpoint
    names: dict[str, str] = field(default_factory=dict)


def open_start(path: str | Path, parameters: Iterable[str]) -> Start:
    """Open what changes are measured from, and find the parameters in it.

    Arguments:
        path: a checkpoint of any kind that can be scanned.
        parameters: the names of what is watched; one that a wrapper has lengthened is found by its end.
    """
    checkpoint = open_checkpoint(path)
    names, missing = {}, []
    for parameter in parameters:
        found = _found(checkpoint, plain_name(parameter))
        if found is None:
            missing.append(parameter)
        elif found != parameter:
            names[parameter] = found
    if missing:
        checkpoint.close()
        raise UserError(
            f"base={printable(path)} has no tensor for {printable(missing[0])}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + ": give a checkpoint of this model, 'init', or None"
        )
    return Start(checkpoint, names)


def plain_name(name: str) -> str:
    """The name of a parameter without what torch.compile puts into it.

    >>> plain_name("_orig_mod.layers.0._orig_mod.weight")
    'layers.0.weight'
    """
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _found(checkpoint: Checkpoint, name: str) -> str | None:
    if name in checkpoint:
        return name
    ends = [each for each in checkpoint if each.endswith(f".{name}") or name.endswith(f".{each}")]
    return ends[0] if len(ends) == 1 else None
