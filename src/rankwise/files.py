"""Files that results go to: written whole or not at all, and known to be writable before hours of work go into them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rankwise.errors import UserError
from rankwise.text import printable


def write_whole(path: str | Path, content: str | bytes, *, durable: bool = False) -> Path:
    """Write a file so that a reader finds the old one or the whole new one, never a part; returns its path.

    A device or a pipe is written to as it is, and a link is followed: neither is replaced. A durable file is on the
    disk when this returns, so that even a power cut leaves the old one or the new one.
    """
    data = content.encode("utf-8", errors="replace") if isinstance(content, str) else content
    place = Path(os.path.realpath(path))
    try:
        if place.exists() and not place.is_file():
            place.write_bytes(data)
            return Path(path)
        _check_folder(place)
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=f".{place.name[:40]}.", delete=False) as fresh:
            try:
                fresh.write(data)
                fresh.flush()
                if durable:
                    os.fsync(fresh.fileno())
                os.chmod(fresh.name, _mode(place))
                os.replace(fresh.name, place)
            except BaseException:
                os.unlink(fresh.name)
                raise
        if durable:
            sync_folder(place.parent)
    except OSError as error:
        raise UserError(f"cannot write {printable(path)}: {error.strerror}") from None
    return Path(path)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk: what was renamed or made there survives a power cut."""
    if os.name == "nt":  # Folders cannot be opened there, and names are journalled.
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(path: str | Path) -> None:
    """Raise a `UserError` where `write_whole` would fail, now and not when the work is done; leaves nothing behind."""
    place = Path(os.path.realpath(path))
    try:
        if place.is_dir():
            raise UserError(f"cannot write {printable(path)}: it is a directory, give the path of a file")
        if place.exists() and not place.is_file():
            return
        _check_folder(place)
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=f".{place.name[:40]}."):
            pass
    except OSError as error:
        raise UserError(f"cannot write {printable(path)}: {error.strerror}") from None


def _check_folder(place: Path) -> None:
    if not place.parent.is_dir():
        folder = printable(place.parent)
        raise UserError(f"{printable(place)}: the folder {folder} does not exist: create it, or give another path")


def usual_mode(most: int = 0o666) -> int:
    """The permissions that a new file gets here: a temporary one has fewer.

    >>> usual_mode() & 0o111
    0
    """
    mask = os.umask(0)
    os.umask(mask)
    return most & ~mask


def _mode(place: Path) -> int:
    """The permissions of the file that is replaced, or those of a new one."""
    return place.stat().st_mode & 0o777 if place.exists() else usual_mode()
