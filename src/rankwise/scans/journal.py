"""What a scan has already found, line by line, so that an interrupted one can go on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO


def fingerprint(*parts: Any) -> str:
    """A name for a scan: the same checkpoint read with the same settings by the same version."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cache_folder() -> Path:
    """Where journals lie: `rankwise/scans` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "rankwise" / "scans"


class Journal:
    """An append-only file of site records; a line that was cut off in the middle is dropped on reading.

    Arguments:
        name: the scan's fingerprint.
        resume: keep what an earlier scan of the same fingerprint found; otherwise start afresh.
        folder: where it lies; the user's cache by default.
    """

    def __init__(self, name: str, *, resume: bool, folder: Path | None = None) -> None:
        self.path = (folder or cache_folder()) / f"{name}.jsonl"
        self.done: dict[str, dict[str, Any]] = _read(self.path) if resume else {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Rewriting what was kept heals a torn last line before anything is appended to it.
        whole = self.path.with_suffix(".new")
        whole.write_text("".join(map(_line, self.done.values())), encoding="utf-8")
        whole.replace(self.path)
        self._file: TextIO = self.path.open("a", encoding="utf-8")

    def add(self, record: Mapping[str, Any]) -> None:
        """Keep the record of a site."""
        self._file.write(_line(record))
        self._file.flush()

    def close(self, *, finished: bool) -> None:
        """Close the file, and remove it when the scan is complete."""
        self._file.close()
        if finished:
            self.path.unlink(missing_ok=True)


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n"


def _read(path: Path) -> dict[str, dict[str, Any]]:
    done: dict[str, dict[str, Any]] = {}
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return done
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("name"), str) and "heads" in record:
            done[record["name"]] = record
    return done
