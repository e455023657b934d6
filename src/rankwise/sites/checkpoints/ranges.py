"""Where bytes come from: any source that can fill a buffer from a given offset."""

from __future__ import annotations

import io
import os
import stat
import threading
import weakref
from pathlib import Path
from typing import Protocol

from rankwise.errors import CheckpointError
from rankwise.text import printable


class ByteRanges(Protocol):
    """A file of known size that is read by ranges: on disk, behind HTTP, or on the Hub."""

    name: str
    size: int

    @property
    def stamp(self) -> str:
        """What tells this state of the file from another: an interrupted scan goes on only where it is the same."""
        ...

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer with the bytes that start at `offset`, or raise CheckpointError."""
        ...

    def close(self) -> None: ...


def read_bytes(source: ByteRanges, offset: int, length: int) -> bytearray:
    """The bytes `[offset, offset + length)` of a source; the range is checked before anything is allocated."""
    if offset < 0 or length < 0 or offset + length > source.size:
        raise CheckpointError(
            f"{source.name}: bytes {offset} to {offset + length} are needed but the file has {source.size}; "
            "it is truncated, fetch it again"
        )
    content = bytearray(length)
    if length:
        source.read_into(offset, memoryview(content))
    return content


class LocalRanges:
    """A regular file on disk, read without a memory map.

    A map would count every page that was touched as resident memory, and a file that shrinks under it kills the
    process with SIGBUS; a read that comes back short is an error that can be told.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.name = printable(name if name is not None else path)
        self._lock = threading.Lock()
        self._file = _open_regular_file(path, self.name)
        # Closes the file when nobody did: a scan is often used without `with`.
        self._finalizer = weakref.finalize(self, self._file.close)
        state = os.fstat(self._file.fileno())
        self.size = state.st_size
        self.stamp = _stamp(state)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        done = 0
        # Seek and read rather than pread, which not every platform has; the lock keeps the two together.
        with self._lock:
            if self._file.closed:
                raise CheckpointError(f"{self.name} was closed before it was read; keep the checkpoint open")
            try:
                self._file.seek(offset)
                while done < len(buffer):
                    count = self._file.readinto(buffer[done:])
                    if not count:
                        raise CheckpointError(
                            f"{self.name} ended at byte {offset + done}: it changed while it was read"
                        )
                    done += count
                if _stamp(os.fstat(self._file.fileno())) != self.stamp:
                    raise CheckpointError(
                        f"{self.name} changed while it was read: wait until nothing writes to it, and start again"
                    )
            except OSError as error:
                raise CheckpointError(
                    f"{self.name} cannot be read at byte {offset + done}: {error.strerror}"
                ) from error

    def close(self) -> None:
        self._finalizer()


def _open_regular_file(path: Path, name: str) -> io.FileIO:
    """Open a regular file; anything else (missing, a pipe, a device, a loop of links) is told in one line."""
    try:
        # Checked before opening, because opening a pipe waits for its writer.
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise CheckpointError(f"{name} is a directory where a weight file was expected")
        if not stat.S_ISREG(mode):
            raise CheckpointError(f"{name} is a {_kind_of(mode)}, not a regular file: copy its content to a file first")
        return open(path, "rb", buffering=0)
    except FileNotFoundError as error:
        raise CheckpointError(f"{name} does not exist") from error
    except PermissionError as error:
        raise CheckpointError(f"{name} cannot be read: permission denied") from error
    except OSError as error:
        raise CheckpointError(f"{name} cannot be opened: {error.strerror}") from error


def _stamp(state: os.stat_result) -> str:
    return f"{state.st_size}-{state.st_mtime_ns}"


def _kind_of(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "pipe"
    if stat.S_ISSOCK(mode):
        return "socket"
    return "device"
