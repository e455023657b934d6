"""What of a run's directory is safe, what a process that was killed left behind, and how to clear that away."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from safetensors import SafetensorError, safe_open

from rankwise.files import write_whole
from rankwise.watch.log import Entry, read_log

RUN, START, LOG, ROWS, SPECTRA = (
    "run.json",
    "start.safetensors",
    "steps.jsonl",
    "products.csv",
    "spectra",
)
_SPECTRUM = re.compile(r"(\d{12})\.safetensors")


@dataclass(frozen=True)
class Survey:
    """What a run holds.

    Arguments:
        entries: its snapshots and gaps, their steps rising.
        dropped: what is not safe, in words; nothing where the run was closed or is being written.
        strays: files that no entry speaks of.
        rows_end: how many bytes of the rows are safe.
        has_whole_log: whether the log says exactly this and can be added to as it is.
        has_header: whether the rows have their first line.
    """

    entries: list[Entry]
    dropped: list[str] = field(kw_only=True, default_factory=list)
    strays: list[Path] = field(kw_only=True, default_factory=list)
    rows_end: int = field(kw_only=True)
    has_whole_log: bool = field(kw_only=True, default=True)
    has_header: bool = field(kw_only=True, default=True)

    @property
    def is_whole(self) -> bool:
        """Whether there is nothing to mend."""
        return self.has_whole_log and self.has_header and not (self.dropped or self.strays)


def survey(folder: Path, *, header: bytes) -> Survey:
    """Look through a run's directory without changing it.

    Arguments:
        folder: the run's directory.
        header: the first line of its rows.
    """
    entries, dropped = read_log(_content(folder / LOG))
    has_whole_log = not dropped and (folder / LOG).exists()
    rows = folder / ROWS
    size = rows.stat().st_size if rows.exists() else 0
    files, unfinished = _spectra(folder)
    strays = [*_unfinished(folder), *unfinished]
    sound: list[Entry] = []
    for entry in entries:
        if entry.kind == "snapshot" and not len(header) <= entry.rows[1] <= size:
            dropped.append(f"step {entry.step}: its rows are missing")
            has_whole_log = False
        elif entry.spectra and entry.step not in files:
            dropped.append(f"step {entry.step}: its spectra are missing")
            sound.append(replace(entry, spectra=False))
            has_whole_log = False
        else:
            sound.append(entry)
    # Everything was on the disk before the log spoke of it; what a bad disk lost shows at the end first.
    if sound and sound[-1].spectra and (problem := _broken(spectra_path(folder, sound[-1].step))) is not None:
        dropped.append(f"step {sound[-1].step}: its spectra cannot be read: {problem}")
        files.discard(sound[-1].step)
        strays.append(spectra_path(folder, sound[-1].step))
        sound[-1], has_whole_log = replace(sound[-1], spectra=False), False
    unknown = files - {entry.step for entry in sound if entry.spectra}
    strays += [spectra_path(folder, step) for step in unknown]
    end = max((entry.rows[1] for entry in sound), default=0) or min(size, len(header))
    if size > end or unknown:
        said = f"step {min(unknown)}" if unknown else "the snapshot in flight"
        dropped.append(f"{said}: it was not finished")
    return Survey(
        sound,
        dropped=dropped,
        strays=strays,
        rows_end=end,
        has_whole_log=has_whole_log,
        has_header=size >= len(header),
    )


def mend(folder: Path, found: Survey, *, header: bytes) -> None:
    """Make a directory hold what was found to be safe and nothing else; whoever calls this holds the lock.

    The log goes first: whatever happens then is again something that no line speaks of.
    """
    if not found.has_whole_log:
        write_whole(folder / LOG, b"".join(entry.line() for entry in found.entries), durable=True)
    cut_rows(folder, found.rows_end, header=header)
    for path in found.strays:
        with suppress(FileNotFoundError):
            path.unlink()


def cut_rows(folder: Path, end: int, *, header: bytes) -> None:
    """Cut the rows off at a byte; where nothing is left, only the header stands."""
    path = folder / ROWS
    path.touch()
    with path.open("r+b") as file:
        if end < len(header) or file.read(len(header)) != header:
            file.seek(0)
            file.write(header)
            file.truncate()
        else:
            file.truncate(end)
        file.flush()
        os.fsync(file.fileno())


def spectra_path(folder: Path, step: int) -> Path:
    """Where the spectra of a step lie."""
    return folder / SPECTRA / f"{step:012d}.safetensors"


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _spectra(folder: Path) -> tuple[set[int], list[Path]]:
    """The steps that have a file of spectra, and files that were never finished."""
    steps, unfinished = set(), []
    with suppress(FileNotFoundError), os.scandir(folder / SPECTRA) as places:
        for place in places:
            match = _SPECTRUM.fullmatch(place.name)
            if match is not None:
                steps.add(int(match[1]))
            elif place.name.startswith("."):
                unfinished.append(Path(place.path))
    return steps, unfinished


def _unfinished(folder: Path) -> Iterator[Path]:
    """What whole files are written to before they are given their names."""
    for name in (RUN, START, LOG):
        yield from folder.glob(f".{name}.*")


def _broken(path: Path) -> str | None:
    try:
        with safe_open(path, "pt") as file:
            file.keys()
    except (OSError, SafetensorError) as error:
        return str(error)
    return None
