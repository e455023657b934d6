"""Checkpoints of one training run, in the order of their steps."""

from __future__ import annotations

import glob
import re
from pathlib import Path

from rankwise.errors import CheckpointError
from rankwise.text import printable


def open_series(pattern: str | Path) -> list[tuple[int, Path]]:
    """The paths that match a glob, as (step, path), sorted by the step.

    The step is the number in the part of the paths that differs: `step1000`, `checkpoint-500`, `ckpt_00010.pt`.

    **Arguments:** a glob such as `runs/a/step*`; a directory means the checkpoints directly inside it.

    **Returns:** the steps in growing order; `CheckpointError` if nothing matches, or a path has no step of its own.
    """
    wanted = str(Path(pattern).expanduser())
    if Path(wanted).is_dir():
        wanted = glob.escape(wanted) + "/*[0-9]*"
    paths = [Path(path) for path in glob.glob(wanted, recursive=True)]
    if not paths:
        raise CheckpointError(f"no checkpoint matches {printable(wanted)}: expected a glob such as 'runs/a/step*'")
    return ordered(paths)


def ordered(paths: list[Path]) -> list[tuple[int, Path]]:
    """Checkpoints of one run as (step, path), sorted by the step that their paths name."""
    steps: dict[int, Path] = {}
    for path in sorted(paths):
        step = _step(path, paths)
        if step in steps:
            raise CheckpointError(
                f"{printable(steps[step])} and {printable(path)} both look like step {step}: narrow the pattern"
            )
        steps[step] = path
    return sorted(steps.items())


def _step(path: Path, paths: list[Path]) -> int:
    """The last number in the last part of the path that not all paths share."""
    differing = [
        part
        for at, part in enumerate(path.parts)
        if any(len(other.parts) <= at or other.parts[at] != part for other in paths)
    ] or [path.name]
    for part in reversed(differing):
        # A suffix is no step: `step10.mp4` means 10.
        numbers = re.findall(r"\d+", re.sub(r"\.[A-Za-z]\w*$", "", part))
        if numbers:
            return int(numbers[-1])
    raise CheckpointError(f"{printable(path)} has no step number in its name: expected one such as 'step1000'")
