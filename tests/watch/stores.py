"""Runs whose rows and spectra are known from their steps, for tests of what is written and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankwise.watch.log import Entry
from rankwise.watch.rows import Row, columns, written
from rankwise.watch.run import Run
from rankwise.watch.store import RunStore, create

MEASURES = ("effective_rank",)
COLUMNS = columns(MEASURES, optimizer=False)
HEADING = {"measures": list(MEASURES), "keep": "spectra", "base": None, "columns": list(COLUMNS)}
SITES: list[dict[str, Any]] = [{"name": "layers.0.qk", "kind": "qk", "layer": 0, "widths": [8, 4, 8], "heads": 2}]


def rows_of(step: int) -> list[Row]:
    """Two heads, one of which failed where the step is odd."""
    facts = {"step": step, "of": "product", "site": "layers.0.qk", "kind": "qk", "layer": 0}
    good = {**facts, "head": 0, "method": "gram64", "effective_rank": 1 + step / 8, "effective_rank_error": 0.001}
    bad = {**facts, "head": 1, "method": "qr", "failure": 'a factor holds NaN, "really"' if step % 2 else None}
    return [good, bad]


def spectra_of(step: int) -> dict[str, Tensor]:
    values = torch.full((2, 4), float(step))
    return {"product/layers.0.qk": values, "product errors/layers.0.qk": torch.zeros(2, 4, dtype=torch.bfloat16)}


def add(store: RunStore, step: int) -> Entry:
    entry = Entry(step, time=float(step), loss=1 / (1 + step))
    return store.append(entry, rows=written(rows_of(step), COLUMNS), spectra=spectra_of(step))


def begun(folder: Path, steps: range = range(0)) -> RunStore:
    store = create(folder, HEADING, SITES)
    for step in steps:
        add(store, step)
    return store


def is_whole(run: Run) -> bool:
    """Whether every snapshot of a run holds what belongs to its step, and nothing lies beside them."""
    for step in run.steps:
        expected = [{name: row.get(name) for name in COLUMNS} for row in rows_of(step)]
        assert list(run.rows(step)) == expected, step
        assert run.spectra(step)["layers.0.qk"].values.eq(step).all(), step
    files = sorted(path.name for path in (run.folder / "spectra").iterdir())
    assert files == [f"{step:012d}.safetensors" for step in run.steps]
    size = (run.folder / "products.csv").stat().st_size
    assert size == max((entry.rows[1] for entry in run.snapshots), default=len(",".join(COLUMNS)) + 1)
    return True
