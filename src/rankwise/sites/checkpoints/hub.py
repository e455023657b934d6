"""A repository of the Hugging Face Hub, read by byte ranges through huggingface-hub's file system."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote

from rankwise.errors import CheckpointError, require
from rankwise.sites.checkpoints.folders import Folder, MissingFile
from rankwise.text import printable

PREFIX = "hf://"
# One request fetches at most this much, because the library hands it over as a copy.
LARGEST_REQUEST = 32 * 2**20
ADDRESS = re.compile(
    r"(?P<repository>[^/@]+/[^/@]+)(?:@(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
)


class HubRanges:
    """A file of a repository, read by range requests."""

    def __init__(self, system: Any, path: str) -> None:
        self.name = printable(PREFIX + path)
        self._lock = threading.Lock()
        with _told(self.name):
            # Without a cache of its own: what is read is what was asked for.
            self._file = system.open(path, "rb", cache_type="none")
            self.size = int(self._file.size)
            self.stamp = f"{self.size}-{(self._file.details or {}).get('blob_id')}"

    def read_into(self, offset: int, buffer: memoryview) -> None:
        with _told(self.name), self._lock:
            for begin in range(0, len(buffer), LARGEST_REQUEST):
                part = buffer[begin : begin + LARGEST_REQUEST]
                self._file.seek(offset + begin)
                content = self._file.read(len(part))
                if len(content) != len(part):
                    raise CheckpointError(
                        f"{self.name}: {len(part)} bytes were asked for and {len(content)} came; it is truncated, "
                        "or the server ignores Range requests"
                    )
                part[:] = content

    def close(self) -> None:
        self._file.close()


class HubFolder:
    """A directory of a repository at one revision."""

    def __init__(self, system: Any, path: str) -> None:
        self.name = printable(PREFIX + path)
        self._system = system
        self._path = path

    def files(self) -> list[str]:
        return self._names("file")

    def directories(self) -> list[str]:
        return self._names("directory")

    def open(self, name: str) -> HubRanges:
        return HubRanges(self._system, f"{self._path}/{name}")

    def child(self, name: str) -> HubFolder:
        return HubFolder(self._system, f"{self._path}/{name}")

    def _names(self, kind: str) -> list[str]:
        # The file system keeps the listing, so asking again costs nothing.
        with _told(self.name):
            listing = self._system.ls(self._path, detail=True)
        return sorted(item["name"].rpartition("/")[2] for item in listing if item["type"] == kind)


def hub_location(address: str, revision: str | None) -> tuple[Folder, str | None]:
    """The folder that `hf://org/name[@revision][/path]` means, and the file in it when it means a file."""
    parts = ADDRESS.fullmatch(address.removeprefix(PREFIX).rstrip("/"))
    if parts is None:
        raise CheckpointError(f"{printable(address)} is not of the form hf://org/name[@revision][/path]")
    stated = parts["revision"]
    if stated and revision and stated != revision:
        raise CheckpointError(f"{printable(address)} states another revision than '{printable(revision)}': give one")
    revision = unquote(stated) if stated else revision
    hub = require("huggingface_hub", extra="hub")
    # Read here, because the library reads it only once, when it is imported.
    system = hub.HfFileSystem(endpoint=os.environ.get("HF_ENDPOINT"), skip_instance_cache=True)
    path = parts["repository"] + (f"@{_quoted(revision)}" if revision else "")
    inside = parts["path"]
    if not inside:
        return HubFolder(system, path), None
    with _told(printable(address)):
        kind = system.info(f"{path}/{inside}")["type"]
    if kind == "directory":
        return HubFolder(system, f"{path}/{inside}"), None
    parent, _, name = f"{path}/{inside}".rpartition("/")
    return HubFolder(system, parent), name


def _quoted(revision: str) -> str:
    """A revision as a part of a path: only the Hub's own references keep their slashes."""
    return revision if revision.startswith("refs/") else quote(revision, safe="")


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Say in one line what the library raises: its own errors, its HTTP client's, or the system's."""
    try:
        yield
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise MissingFile(f"{name} does not exist on the Hub: {_first_line(error)}") from error
    # The classes of the HTTP client differ between versions of the library, so they cannot be named here.
    except Exception as error:
        raise CheckpointError(f"{name} cannot be read from the Hub: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return printable(lines[0] if lines else type(error).__name__, 200)
