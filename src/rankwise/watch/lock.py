"""One writer for a run's directory, from whatever process, for as long as it lives."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from rankwise.errors import UserError
from rankwise.text import printable

try:
    import fcntl
except ImportError:  # Windows: who holds a lock is told by its process number alone.
    fcntl = None

# Some network disks have no locks; others grant them to whoever asks first in a while.
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
# A reader that looks whether a run is written holds its lock for an instant.
PATIENCE_SECONDS = 0.5

# The directories that this process writes, each with its process number: children that it forks do not hold its locks.
_held: dict[str, int] = {}


class RunLock:
    """The right to write a run, held until `release` or the end of the process, however it ends.

    The kernel holds the lock, so that a process that was killed leaves none; where the disk knows no locks, the file's
    word is taken for who holds it, and a process that is no more is recognized.

    Arguments:
        folder: the run's directory.
    """

    def __init__(self, folder: Path) -> None:
        self._key, self._process = os.path.realpath(folder), os.getpid()
        if _held.get(self._key) == self._process:
            raise UserError(f"{printable(folder)} is being written by this process already: close its monitor first")
        path = folder / "lock"
        self._file: IO[str] = path.open("a+", encoding="utf-8")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _locked(self._file):
            if time.monotonic() > deadline:
                self._file.seek(0)
                owner = _owner(self._file.read())
                self._file.close()
                raise UserError(
                    f"{printable(folder)} is being written by process {owner.get('pid', 'unknown')} on "
                    f"{printable(owner.get('host', 'another machine'))}: end that one, or give another run="
                )
            time.sleep(0.02)
        self._file.seek(0)
        self._file.truncate()
        json.dump(_self(), self._file)
        self._file.flush()
        _held[self._key] = self._process

    def release(self) -> None:
        """Let others write. In a forked child this does nothing: the lock is the parent's."""
        if self._process != os.getpid() or self._file.closed:
            return
        with suppress(OSError):
            self._file.truncate(0)
        self._file.close()
        _held.pop(self._key, None)


def is_written(folder: Path) -> bool:
    """Whether some living process writes a run."""
    # Closing the file here would give up a lock that this process holds on it.
    if _held.get(os.path.realpath(folder)) == os.getpid():
        return True
    try:
        with (folder / "lock").open(encoding="utf-8") as file:
            return not _locked(file, shared=True)
    except OSError:
        return False


def _locked(file: IO[str], *, shared: bool = False) -> bool:
    """Take the lock of a file, or say that somebody else has it; a shared one needs no right to write."""
    if fcntl is not None:
        try:
            fcntl.lockf(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in NO_LOCKS:
                return False
    file.seek(0)
    return not _lives(_owner(file.read()))


def _owner(text: str) -> dict[str, Any]:
    try:
        owner = json.loads(text)
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _self() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": _started(os.getpid())}


def _lives(owner: dict[str, Any]) -> bool:
    """Whether the process that a lock file names still exists; one on another machine is believed to."""
    pid = owner.get("pid")
    if not isinstance(pid, int):
        return False
    if owner.get("host") != socket.gethostname():
        return True
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    # The number may have been given to another process since.
    return owner.get("started") is None or owner["started"] == _started(pid)


def _started(pid: int) -> str | None:
    """When a process began, in the kernel's own count; None where it does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
