"""Reading a run: its snapshots, rows and spectra, while it is written or years later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open

from rankwise.errors import UserError
from rankwise.product.spectrum import Spectrum
from rankwise.text import printable
from rankwise.watch.lock import RunLock, is_written
from rankwise.watch.log import Entry
from rankwise.watch.rows import Row, header, rows_at
from rankwise.watch.store import read_heading
from rankwise.watch.survey import ROWS, mend, spectra_path, survey

if TYPE_CHECKING:
    import pandas
    import pyarrow


@dataclass(frozen=True)
class Run:
    """A run as it was when it was opened; `open_run` again for what was written since.

    Arguments:
        folder: its directory.
        heading: format, settings, configuration, environment.
        entries: its snapshots and gaps, by rising step.
        dropped: what a killed process had left, and is not part of the run.
        is_written: whether a living process was writing it.
    """

    folder: Path
    heading: Mapping[str, Any] = field(repr=False)
    entries: tuple[Entry, ...] = field(repr=False)
    dropped: tuple[str, ...]
    is_written: bool

    @cached_property
    def snapshots(self) -> tuple[Entry, ...]:
        """What was recorded."""
        return tuple(entry for entry in self.entries if entry.kind == "snapshot")

    @cached_property
    def gaps(self) -> tuple[Entry, ...]:
        """What should have been recorded and could not be, each with its reason."""
        return tuple(entry for entry in self.entries if entry.kind == "gap")

    @property
    def steps(self) -> list[int]:
        """The steps of the snapshots."""
        return [entry.step for entry in self.snapshots]

    @property
    def sites(self) -> list[dict[str, Any]]:
        """What is known of each site: name, kind, layer, widths, notes, ..."""
        return self.heading["sites"]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the rows."""
        return tuple(self.heading["columns"])

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """Every alarm that was raised or cleared, in order."""
        return [{"step": entry.step, **alarm} for entry in self.entries for alarm in entry.alarms]

    def rows(self, step: int | None = None) -> Iterator[Row]:
        """The rows of one snapshot, or of all of them, as dictionaries; needs nothing beyond the core.

        Arguments:
            step: of which snapshot; all by default.
        """
        chosen = self.snapshots if step is None else (self._snapshot(step),)
        with (self.folder / ROWS).open("rb") as file:
            for entry in chosen:
                yield from rows_at(file, *entry.rows, self.columns)

    def spectra(self, step: int, of: str = "product") -> dict[str, Spectrum]:
        """The spectra of a snapshot by site.

        Arguments:
            step: of which snapshot.
            of: "product", "change" or "gradient".
        """
        entry = self._snapshot(step)
        if not entry.spectra:
            raise UserError(f"{printable(self.folder)} holds no spectra of step {step}: it keeps measures alone")
        found = {}
        with safe_open(spectra_path(self.folder, step), "pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                prefix, _, name = key.partition("/")
                if prefix == of:
                    values, error = file.get_tensor(key).double(), file.get_tensor(f"{of} errors/{name}").double()
                    found[name] = _spectrum(values, error)
        if not found:
            raise UserError(f"{printable(self.folder)} holds no spectra of the {of} at step {step}")
        return found

    def to_arrow(self) -> pyarrow.Table:
        """All rows as an Arrow table."""
        from rankwise.watch.frames import to_arrow

        return to_arrow(self)

    def to_pandas(self) -> pandas.DataFrame:
        """All rows as a pandas data frame."""
        from rankwise.watch.frames import to_pandas

        return to_pandas(self)

    def to_polars(self) -> Any:
        """All rows as a polars data frame."""
        from rankwise.watch.frames import to_polars

        return to_polars(self)

    def _snapshot(self, step: int) -> Entry:
        found = self._by_step.get(step)
        if found is None:
            near = min(self.steps, key=lambda each: abs(each - step), default=None)
            hint = f"the nearest is step {near}" if near is not None else "it holds none"
            raise UserError(f"{printable(self.folder)} has no snapshot of step {step}: {hint}")
        return found

    @cached_property
    def _by_step(self) -> dict[int, Entry]:
        return {entry.step: entry for entry in self.snapshots}

    def __repr__(self) -> str:
        steps = f", steps {self.steps[0]} to {self.steps[-1]}" if self.snapshots else ""
        gaps = f", {len(self.gaps)} gaps" if self.gaps else ""
        return f"Run({printable(self.folder)}: {len(self.snapshots)} snapshots{steps}{gaps})"


def open_run(path: str | Path, *, repair: bool = True) -> Run:
    """Open a run, and clear away what a killed process has left in it.

    Arguments:
        path: its directory.
        repair: cut off what is not safe, on the disk as well; it is left out of what is read in any case. A run that a
            living process is writing, or that may not be written, is never changed.

    Returns:
        The run; `run.dropped` says what was not safe, and `run.is_written` whether it still grows.
    """
    folder = Path(path)
    heading = read_heading(folder)
    first = header(heading["columns"])
    if is_written(folder):
        found = survey(folder, header=first)
        return Run(folder, heading, tuple(found.entries), (), True)
    found = survey(folder, header=first)
    if repair and not found.is_whole:
        try:
            lock = RunLock(folder)
        except (OSError, UserError):
            # Not ours to write, or somebody has just begun to: what is read leaves it out all the same.
            return Run(folder, heading, tuple(found.entries), tuple(found.dropped), is_written(folder))
        try:
            found = survey(folder, header=first)
            mend(folder, found, header=first)
        except OSError:
            pass
        finally:
            lock.release()
    return Run(folder, heading, tuple(found.entries), tuple(found.dropped), False)


def _spectrum(values: torch.Tensor, error: torch.Tensor) -> Spectrum:
    lost = values.isnan().any(-1).flatten().nonzero().flatten().tolist()
    return Spectrum(
        values, method="stored", error=error, failures=dict.fromkeys(lost, "it had no spectrum: see its row")
    )
