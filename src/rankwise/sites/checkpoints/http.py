"""A file behind HTTP, read by `Range` requests; nothing is downloaded whole."""

from __future__ import annotations

import http.client
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from http.client import BadStatusLine, IncompleteRead

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints.folders import MissingFile
from rankwise.sites.checkpoints.ranges import ByteRanges
from rankwise.text import printable

# The first request fetches this much: enough for most headers, so that a small shard is opened by one round trip.
HEAD_BYTES = 2**16
ATTEMPTS = 4
TIMEOUT_SECONDS = 60.0
FIRST_PAUSE_SECONDS = 0.25
# Answers that a later attempt may better.
TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


class HttpRanges:
    """A file on a server that honours `Range`; broken connections are taken up again where they broke."""

    def __init__(self, url: str) -> None:
        self.name = printable(without_query(url))
        self._url = url
        self._tag: str | None = None
        self.size = 0
        self._head = memoryview(b"")
        head = bytearray(HEAD_BYTES)
        done = self._fetch(0, memoryview(head))
        self._head = memoryview(head)[:done]

    @property
    def stamp(self) -> str:
        return f"{self.size}-{self._tag}"

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if offset + len(buffer) <= len(self._head):
            buffer[:] = self._head[offset : offset + len(buffer)]
        elif self._fetch(offset, buffer) < len(buffer):
            raise CheckpointError(f"{self.name} ended before byte {offset + len(buffer)}: it changed while it was read")

    def close(self) -> None:
        """Nothing is held open between requests."""

    def _fetch(self, offset: int, buffer: memoryview) -> int:
        """Fill the buffer from the offset on, or up to the end of the file; returns the count of bytes."""
        done, failures = 0, 0
        while done < len(buffer):
            try:
                count = self._request(offset + done, buffer[done:])
            except CheckpointError:
                raise
            # ValueError: what urllib says of a URL that it cannot even take apart.
            except (http.client.HTTPException, OSError, ValueError) as error:
                failures += 1
                if failures == ATTEMPTS or not _transient(error):
                    raise self._refusal(error) from error
                time.sleep(FIRST_PAUSE_SECONDS * 2 ** (failures - 1))
                continue
            done += count
            if offset + done >= self.size:
                break
            if not count:
                failures += 1
                if failures == ATTEMPTS:
                    raise CheckpointError(f"{self.name}: the server keeps closing the connection; try again later")
        return done

    def _request(self, offset: int, buffer: memoryview) -> int:
        headers = {
            "Range": f"bytes={offset}-{offset + len(buffer) - 1}",
            "Accept-Encoding": "identity",
            "User-Agent": "rankwise",
        }
        try:
            request = urllib.request.Request(self._url, headers=headers)
            response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            # An empty file has no byte 0: the server says so with 416 and the size it has.
            if error.code == 416 and error.headers.get("Content-Range", "").endswith("/0"):
                error.close()
                return 0
            raise
        with response:
            stated = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", response.headers.get("Content-Range", ""))
            if response.status != 206 or stated is None or int(stated[1]) != offset:
                raise CheckpointError(
                    f"{self.name}: the server ignores Range requests, so reading would download the file whole; "
                    "download it yourself and give its path"
                )
            tag = response.headers.get("ETag")
            if self.size and (int(stated[3]) != self.size or tag != self._tag):
                raise CheckpointError(f"{self.name} changed on the server while it was read; start again")
            self.size, self._tag = int(stated[3]), tag
            done = 0
            wanted = min(len(buffer), self.size - offset)
            while done < wanted and (count := response.readinto(buffer[done:wanted])):
                done += count
            return done

    def _refusal(self, error: Exception) -> CheckpointError:
        status = error.code if isinstance(error, urllib.error.HTTPError) else None
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        if status in (404, 410):
            return MissingFile(f"{self.name} does not exist on the server (HTTP {status})")
        if status in (401, 403):
            return CheckpointError(f"{self.name}: the server refuses access (HTTP {status})")
        reason = f"HTTP {status}" if status else printable(getattr(error, "reason", None) or error)
        return CheckpointError(f"{self.name} cannot be fetched: {reason}")


class HttpFolder:
    """The place beside a URL: it can open siblings, but not list them."""

    def __init__(self, url: str) -> None:
        self._url = url if url.endswith("/") else url + "/"
        self.name = printable(without_query(url))

    def files(self) -> None:
        return None

    def directories(self) -> list[str]:
        return []

    def open(self, name: str) -> ByteRanges:
        return HttpRanges(self._url + urllib.parse.quote(name))

    def child(self, name: str) -> HttpFolder:
        return HttpFolder(self._url + urllib.parse.quote(name))


class HttpFile(HttpFolder):
    """A URL of one file, with its query, and the siblings that share its path."""

    def __init__(self, url: str) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError as error:
            raise CheckpointError(f"{printable(url)} is not a URL: {printable(error)}") from error
        folder, _, self.file = parts.path.rpartition("/")
        super().__init__(urllib.parse.urlunsplit((parts.scheme, parts.netloc, folder + "/", "", "")))
        if not self.file:
            raise CheckpointError(
                f"{self.name} is not the URL of a file: give the URL of a .safetensors file or of its .index.json"
            )
        self._whole = url

    def open(self, name: str) -> ByteRanges:
        return HttpRanges(self._whole) if name == self.file else super().open(name)


def without_query(url: str) -> str:
    """The URL as it may be shown: queries and user names carry secrets."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _transient(error: Exception) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code in TRANSIENT_STATUS
    # A name that does not resolve or a port that nobody serves does not come back within a second.
    reason = getattr(error, "reason", error)
    return isinstance(reason, (TimeoutError, ConnectionResetError, IncompleteRead, BadStatusLine))
