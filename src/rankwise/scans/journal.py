"""What a scan has already found, line by line, so that an interrupted one can go on."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from rankwise.errors import UserError
from rankwise.text import printable

# What nobody came back for in a month is not missed.
KEPT_SECONDS = 30 * 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is computed: an interrupted computation goes on only where all of this is the same.

    Arguments:
        source, base: the checkpoint, and what it is compared with.
        contents: a digest of what they hold.
        sites: a digest of the products that are read from them.
        settings: how it is computed.
        rankwise: the version that computes.
    """

    source: str
    base: str | None = None
    contents: str
    sites: str
    settings: Mapping[str, Any]
    rankwise: str

    def fingerprint(self) -> str:
        """A short name."""
        return digest(asdict(self))


def digest(*parts: Any) -> str:
    """A short name for things that JSON can hold, or that show themselves in full."""
    text = json.dumps(parts, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cache_folder() -> Path:
    """Where journals lie: `rankwise/scans` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(base) / "rankwise" / "scans"


class Journal:
    """An append-only file of records by key; a line that was cut off in the middle is dropped on reading.

    It outlives the process until `discard`, which belongs after the results were written where the user wants them.
    Where no file can be kept, `problem` says why, and the computation goes on without.

    Arguments:
        subject: what is computed.
        resume: go on with what an earlier run found, and refuse where only something else was interrupted; otherwise
            start afresh.
        folder: where it lies; the user's cache by default.
    """

    def __init__(self, subject: Subject, *, resume: bool, folder: Path | None = None) -> None:
        place = folder or cache_folder()
        self.path = place / f"{subject.fingerprint()}.jsonl"
        self.problem: str | None = None
        self.done: dict[str, Any] = {}
        self._file: TextIO | None = None
        if resume:
            if not self.path.exists():
                _refuse_another(subject, place)
            self.done = _read(self.path)
        try:
            place.mkdir(parents=True, exist_ok=True)
            _prune(place)
            # Rewriting what was kept heals a torn last line before anything is appended to it.
            whole = self.path.with_suffix(f".{os.getpid()}")
            kept = [{"subject": asdict(subject)}, *({"key": key, "record": found} for key, found in self.done.items())]
            whole.write_text("".join(map(_line, kept)), encoding="utf-8")
            whole.replace(self.path)
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            self._give_up(error)

    @property
    def resumed(self) -> int:
        """How many records an earlier run had found."""
        return len(self.done)

    def add(self, key: str, record: Any) -> None:
        """Keep a record."""
        if self._file is None:
            return
        try:
            self._file.write(_line({"key": key, "record": record}))
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file and leave it for a later run."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def discard(self) -> None:
        """Close the file and remove it: its results are safe elsewhere."""
        self.close()
        with suppress(OSError):
            self.path.unlink()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _give_up(self, error: OSError) -> None:
        self.problem = f"{printable(self.path.parent)}: {error.strerror}"
        self.close()


def _refuse_another(subject: Subject, folder: Path) -> None:
    """Say in one line how the run that was interrupted differs from this one; nothing where there was none."""
    others = [other for other in _subjects(folder) if (other.get("source"), other.get("base")) == _place(subject)]
    if not others:
        return
    source, anew = printable(subject.source), "leave out --resume to start anew"
    same = [other for other in others if other.get("contents") == subject.contents]
    if not same:
        raise UserError(f"cannot resume: {source} has changed since its scan was interrupted; {anew}")
    now, then = asdict(subject), same[0]
    if now["rankwise"] != then.get("rankwise"):
        raise UserError(f"cannot resume: the scan was begun by rankwise {then.get('rankwise')}; {anew}")
    before = then.get("settings") or {}
    names = [name for name in now["settings"] if now["settings"][name] != before.get(name)]
    listed = ", ".join(f"{name} {_words(before.get(name))} (now {_words(now['settings'][name])})" for name in names)
    listed = listed or "other layouts"
    raise UserError(f"cannot resume: the scan of {source} was interrupted with {listed}: say the same, or {anew}")


def _place(subject: Subject) -> tuple[str, str | None]:
    return subject.source, subject.base


def _words(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)
    return printable(text, limit=60)


def _subjects(folder: Path) -> Iterator[dict[str, Any]]:
    """What the journals of a folder are of, the latest first."""
    with suppress(OSError):
        for path in sorted(folder.glob("*.jsonl"), key=_age):
            with suppress(OSError, ValueError), path.open(encoding="utf-8") as file:
                first = json.loads(file.readline())
                if isinstance(first, dict) and isinstance(first.get("subject"), dict):
                    yield first["subject"]


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _prune(folder: Path) -> None:
    for path in folder.glob("*.jsonl"):
        if _age(path) > KEPT_SECONDS:
            with suppress(OSError):
                path.unlink()


def _line(content: Mapping[str, Any]) -> str:
    return json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n"


def _read(path: Path) -> dict[str, Any]:
    done: dict[str, Any] = {}
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return done
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("key"), str) and isinstance(entry.get("record"), dict):
            done[entry["key"]] = entry["record"]
    return done
