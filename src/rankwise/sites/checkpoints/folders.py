"""A place that holds weight files beside each other: a directory on disk; HTTP and the Hub have their own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Protocol

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints.ranges import ByteRanges, LocalRanges, read_bytes
from rankwise.text import printable

LARGEST_JSON = 100_000_000


class MissingFile(CheckpointError):
    """A file that was named does not exist."""


class Folder(Protocol):
    """Files beside each other, opened by their plain names."""

    name: str

    def files(self) -> list[str] | None:
        """Names of the files directly inside, sorted; None where the place cannot be listed."""
        ...

    def directories(self) -> list[str]:
        """Names of the directories directly inside, sorted."""
        ...

    def open(self, name: str) -> ByteRanges:
        """The bytes of one file; raises MissingFile where there is none."""
        ...

    def child(self, name: str) -> Folder: ...


class LocalFolder:
    """A directory on disk."""

    def __init__(self, path: Path) -> None:
        self.name = printable(path)
        self._path = path

    def files(self) -> list[str]:
        return sorted(entry for entry in self._entries() if not os.path.isdir(self._path / entry))

    def directories(self) -> list[str]:
        return sorted(entry for entry in self._entries() if os.path.isdir(self._path / entry))

    def open(self, name: str) -> ByteRanges:
        path = self._path / name
        if not os.path.lexists(path):
            raise MissingFile(f"{printable(path)} does not exist")
        return LocalRanges(path)

    def child(self, name: str) -> LocalFolder:
        return LocalFolder(self._path / name)

    def _entries(self) -> list[str]:
        try:
            return os.listdir(self._path)
        except OSError as error:
            raise CheckpointError(f"{self.name} cannot be listed: {error.strerror}") from error


def read_json(folder: Folder, name: str) -> dict[str, Any]:
    """The JSON object in a file of the folder."""
    source = folder.open(name)
    try:
        if source.size > LARGEST_JSON:
            raise CheckpointError(f"{source.name} has {source.size} bytes, far more than a JSON file of a model")
        content = json.loads(read_bytes(source, 0, source.size).decode("utf-8"))
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{source.name} is not valid JSON in UTF-8: mend it, or fetch it again") from error
    finally:
        source.close()
    if not isinstance(content, dict):
        raise CheckpointError(f"{source.name} holds a JSON {type(content).__name__}, an object was expected")
    return content


def read_json_beside(folder: Folder, name: str) -> tuple[dict[str, Any] | None, list[str]]:
    """The JSON object in a file of the folder, None where there is no such file; and notes of why it was not read.

    Where the folder cannot be listed, a server's refusal may only mean that there is no such file, so it is a note.
    """
    listed = folder.files()
    if listed is not None:
        return (read_json(folder, name) if name in listed else None), []
    try:
        return read_json(folder, name), []
    except MissingFile:
        return None, []
    except CheckpointError as error:
        return None, [f"no {name} was read: {error}"]


def plain_name(name: object, where: str) -> str:
    """A file name out of an index, refused when it leads out of the folder."""
    parts = name.split("/") if isinstance(name, str) else []
    if not parts or any(part in ("", ".", "..") or "\\" in part or ":" in part or "\0" in part for part in parts):
        raise CheckpointError(
            f"{where} names the file '{printable(name)}', which is not a plain name inside its folder: refused"
        )
    return "/".join(parts)
