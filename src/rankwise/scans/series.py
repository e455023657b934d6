"""Several checkpoints of one run, scanned in the order of their steps."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankwise.errors import CheckpointError, UserError
from rankwise.sites.checkpoints import open_series
from rankwise.sites.checkpoints.series import ordered

FORMAT, VERSION = "rankwise-series", 1


def steps_of(sources: Sequence[str]) -> list[tuple[int | None, str]]:
    """What the words on a command line mean: one checkpoint, or a series of them with their steps.

    A single word that exists is one checkpoint even when it holds a `*`; a glob, or several words (what a shell makes
    of a glob), is a series.
    """
    if len(sources) == 1:
        (source,) = sources
        if Path(source).exists() or not glob.has_magic(source) or "://" in source:
            return [(None, source)]
        return [(step, str(path)) for step, path in open_series(source)]
    try:
        return [(step, str(path)) for step, path in ordered([Path(source) for source in sources])]
    except CheckpointError as error:
        raise UserError(
            f"{error} (several checkpoints are read as steps of one run; compare two with 'rankwise diff', and scan "
            "others one by one)"
        ) from None


def series_record(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several records, each with its `step`, as one."""
    return {"format": FORMAT, "version": VERSION, "scans": list(records)}
