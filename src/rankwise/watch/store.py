"""Writing a run: a snapshot is safe, whole, before the log speaks of it; what was not is cleared away."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors.torch import save, save_file
from torch import Tensor

from rankwise.errors import UserError
from rankwise.files import sync_folder, usual_mode, write_whole
from rankwise.text import printable
from rankwise.watch.lock import RunLock
from rankwise.watch.log import Entry
from rankwise.watch.rows import header
from rankwise.watch.survey import (
    LOG,
    ROWS,
    RUN,
    SPECTRA,
    START,
    Survey,
    cut_rows,
    mend,
    spectra_path,
    survey,
)

FORMAT, VERSION = "rankwise-run", 1

_LOCKED = ("measures", "keep", "base", "columns")
"""Settings that a run keeps from its first step to its last: its rows would not fit together otherwise."""


class RunStore:
    """A run that is being written; made by `create` or `reopen`, which take its lock.

    Arguments:
        folder: the run's directory.
        heading: what `run.json` holds.
        lock: the right to write.
        found: what the directory held.
    """

    def __init__(self, folder: Path, heading: Mapping[str, Any], lock: RunLock, found: Survey) -> None:
        self.folder, self.heading = folder, heading
        self.entries, self.dropped = found.entries, tuple(found.dropped)
        self._lock, self._process = lock, os.getpid()
        self._header = header(heading["columns"])
        self._rows_end = max(found.rows_end, len(self._header))
        self._rows = os.open(folder / ROWS, os.O_RDWR)
        self._log = os.open(folder / LOG, os.O_RDWR)
        self._log_end = os.fstat(self._log).st_size

    @property
    def last_step(self) -> int | None:
        """The last step that the log speaks of."""
        return self.entries[-1].step if self.entries else None

    def append(self, entry: Entry, *, rows: bytes = b"", spectra: Mapping[str, Tensor] | None = None) -> Entry:
        """Write a snapshot or a gap, and return the entry as it stands in the log.

        Where the disk refuses, the run is left as it was.
        """
        assert self._process == os.getpid(), "a run is written by the process that opened it"
        assert self.last_step is None or entry.step > self.last_step, (entry.step, self.last_step)
        if entry.kind == "snapshot":
            entry = replace(entry, rows=(self._rows_end, self._rows_end + len(rows)), spectra=spectra is not None)
        if spectra is not None:
            write_whole(spectra_path(self.folder, entry.step), save(dict(spectra)), durable=True)
        if rows:
            _write_at(self._rows, self._rows_end, rows)
        line = entry.line()
        _write_at(self._log, self._log_end, line)
        self._rows_end += len(rows)
        self._log_end += len(line)
        self.entries.append(entry)
        return entry

    def rewind(self, step: int) -> int:
        """Forget a step and all that came after it; returns how many snapshots that were."""
        kept = [entry for entry in self.entries if entry.step < step]
        gone = self.entries[len(kept) :]
        if not gone:
            return 0
        write_whole(self.folder / LOG, b"".join(entry.line() for entry in kept), durable=True)
        self.entries = kept
        self._rows_end = max((entry.rows[1] for entry in kept), default=0) or len(self._header)
        cut_rows(self.folder, self._rows_end, header=self._header)
        for entry in gone:
            spectra_path(self.folder, entry.step).unlink(missing_ok=True)
        # The log is another file now.
        os.close(self._log)
        self._log = os.open(self.folder / LOG, os.O_RDWR)
        self._log_end = os.fstat(self._log).st_size
        return sum(entry.kind == "snapshot" for entry in gone)

    def keep_start(self, start: Mapping[str, Tensor]) -> None:
        """Keep the parameters that changes are measured from."""
        _keep_start(self.folder, start)

    def close(self) -> None:
        """Let others write; nothing is left to be done for the files."""
        if self._process == os.getpid() and self._log >= 0:
            os.close(self._rows)
            os.close(self._log)
            self._rows = self._log = -1
            self._lock.release()


def create(
    folder: Path,
    heading: Mapping[str, Any],
    sites: Sequence[Mapping[str, Any]],
    *,
    start: Mapping[str, Tensor] | None = None,
) -> RunStore:
    """Begin a run; the directory may exist, but may not hold one.

    Arguments:
        folder: the run's directory.
        heading: the settings, configuration and environment; `columns` are those of the rows.
        sites: what is known of each site, in the order of the rows.
        start: the parameters that changes are measured from.
    """
    try:
        (folder / SPECTRA).mkdir(parents=True, exist_ok=True)
        lock = RunLock(folder)
    except OSError as error:
        raise UserError(f"cannot make the run {printable(folder)}: {error.strerror}; give another run=") from None
    try:
        if (folder / RUN).exists():
            raise UserError(
                f"{printable(folder)} holds a run already: give resume=True to go on with it, or another run="
            )
        if foreign := [name for name in (LOG, ROWS) if (folder / name).exists()]:
            raise UserError(f"{printable(folder)} holds {foreign[0]} but no {RUN}: give another run=")
        whole = {
            "format": FORMAT,
            "version": VERSION,
            "rankwise": version("rankwise"),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            **heading,
            "sites": list(sites),
        }
        if start is not None:
            _keep_start(folder, start)
        # From here on it is a run: a process that is killed before leaves none, and afterwards an empty one.
        write_whole(folder / RUN, json.dumps(whole, indent=1, default=str) + "\n", durable=True)
        sync_folder(folder.absolute().parent)
        mend(folder, Survey([], rows_end=0, has_whole_log=False), header=header(heading["columns"]))
        return RunStore(folder, whole, lock, Survey([], rows_end=0))
    except BaseException:
        lock.release()
        raise


def reopen(folder: Path, heading: Mapping[str, Any], sites: Sequence[Mapping[str, Any]]) -> RunStore:
    """Go on with a run, once what a killed process left there has been cleared away.

    The settings that its rows depend on, and its sites, have to be the same.
    """
    stored = read_heading(folder)
    for name in _LOCKED:
        if stored.get(name) != heading.get(name):
            raise UserError(
                f"{printable(folder)} was begun with {name} {_words(stored.get(name))}, now it is "
                f"{_words(heading.get(name))}: say the same, or give another run="
            )
    known, now = ([(site["name"], site["widths"]) for site in some] for some in (stored["sites"], sites))
    if known != now:
        differing = next((name for name, _ in set(map(_key, known)) ^ set(map(_key, now))), "their order")
        raise UserError(f"{printable(folder)} watches other sites than these ({differing}): select the same ones")
    lock = RunLock(folder)
    try:
        first = header(stored["columns"])
        found = survey(folder, header=first)
        mend(folder, found, header=first)
        return RunStore(folder, stored, lock, found)
    except BaseException:
        lock.release()
        raise


def read_heading(folder: Path) -> dict[str, Any]:
    """What `run.json` holds, or one line that says why this is not a run."""
    path = folder / RUN
    if not path.is_file():
        what = "is no directory" if not folder.is_dir() else f"has no {RUN}"
        raise UserError(f"{printable(folder)} is not a run: it {what}")
    try:
        heading = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{printable(path)} cannot be read: {printable(error)}") from None
    if not isinstance(heading, dict) or heading.get("format") != FORMAT:
        raise UserError(f"{printable(path)} does not say that this is a run: its format is not '{FORMAT}'")
    if heading.get("version") != VERSION:
        raise UserError(
            f"{printable(folder)} is a run of version {printable(heading.get('version'))}, this library reads version "
            f"{VERSION}: read it with the rankwise {printable(heading.get('rankwise'))} that wrote it"
        )
    return heading


def _keep_start(folder: Path, start: Mapping[str, Tensor]) -> None:
    fresh = folder / f".{START}.{os.getpid()}"
    # From its own pages to the disk: these may be most of a model.
    save_file({name: tensor.detach().contiguous() for name, tensor in start.items()}, fresh)
    with fresh.open("rb") as file:
        os.fsync(file.fileno())
    fresh.chmod(usual_mode())
    fresh.replace(folder / START)
    sync_folder(folder)


def _write_at(descriptor: int, place: int, content: bytes) -> None:
    """Write at a place, over what an attempt that failed may have left there, and force it to the disk."""
    os.ftruncate(descriptor, place)
    os.lseek(descriptor, place, os.SEEK_SET)
    view = memoryview(content)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, place)
        raise


def _words(value: Any) -> str:
    return "none" if value is None else printable(json.dumps(value), limit=100)


def _key(site: tuple[str, Any]) -> tuple[str, tuple[int, ...]]:
    return site[0], tuple(site[1])
