"""Local servers that tests read weights from: one that honours `Range`, and one that also speaks the Hub's API."""

from __future__ import annotations

import json
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """What a server offers, how it misbehaves, and what it was asked for."""

    files: dict[str, bytes]
    url: str = ""
    honours_ranges: bool = True
    failures: list[int] = field(default_factory=list)
    """Statuses that the next requests get instead of an answer."""
    cut_after: list[int] = field(default_factory=list)
    """The next answers break off after so many bytes."""
    tags: list[str] = field(default_factory=list)
    """ETags of the next answers."""
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    """(path, first, last) of every range that was asked for."""

    @property
    def bytes_asked(self) -> int:
        return sum(last - first + 1 for _, first, last in self.ranges)


Answer = Callable[[str], tuple[int, bytes] | None]


@contextmanager
def serving(files: Mapping[str, bytes], answer: Answer = lambda path: None) -> Iterator[Served]:
    """Serve these files by path, and what `answer` says for a path before them, on a free port of 127.0.0.1."""
    served = Served(dict(files))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Tests print nothing."""

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
            said = answer(path)
            if said is not None:
                self._send(said[0], said[1], {"Content-Type": "application/json"}, with_body)
            elif served.failures:
                self._send(served.failures.pop(0), b"", {}, with_body)
            elif path not in served.files:
                self._send(404, b"", {}, with_body)
            else:
                self._send_file(path, served.files[path], with_body)

        def _send_file(self, path: str, content: bytes, with_body: bool) -> None:
            headers = {"ETag": f'"{served.tags.pop(0) if served.tags else "same"}"', "Accept-Ranges": "bytes"}
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if asked is None or not served.honours_ranges:
                self._send(200, content, headers, with_body)
                return
            first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
            if first >= len(content):
                self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"}, with_body)
                return
            served.ranges.append((path, first, last))
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            self._send(206, content[first : last + 1], headers, with_body)

        def _send(self, status: int, body: bytes, headers: dict[str, str], with_body: bool) -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if not with_body:
                return
            if status == 206 and served.cut_after:
                body = body[: served.cut_after.pop(0)]
                self.close_connection = True
            # A client may hang up on an answer that it has seen enough of.
            with suppress(ConnectionError):
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serving_hub(repository: str, files: Mapping[str, bytes], revision: str = "main") -> Iterator[Served]:
    """Serve the files of one repository as the Hub does, as far as its file system needs to read them."""

    def answer(path: str) -> tuple[int, bytes] | None:
        api = f"/api/models/{repository}"
        if path in (api, f"{api}/revision/{revision}"):
            return 200, json.dumps({"id": repository, "sha": "0" * 40, "siblings": []}).encode()
        tree = re.fullmatch(rf"{re.escape(api)}/tree/{re.escape(revision)}(?:/(.*))?", path)
        if tree is not None:
            items = _tree(files, tree[1] or "")
            return (200, json.dumps(items).encode()) if items else (404, b"{}")
        return (404, b'{"error": "not found"}') if path.startswith("/api/") else None

    with serving({f"/{repository}/resolve/{revision}/{name}": body for name, body in files.items()}, answer) as served:
        yield served


def _tree(files: Mapping[str, bytes], folder: str) -> list[dict[str, object]]:
    """The listing of one folder, in the shape that the Hub's tree endpoint has."""
    prefix = f"{folder}/" if folder else ""
    items: dict[str, dict[str, object]] = {}
    for name, body in files.items():
        if not name.startswith(prefix):
            continue
        first, _, deeper = name.removeprefix(prefix).partition("/")
        kind = {"type": "directory", "size": 0} if deeper else {"type": "file", "size": len(body)}
        items[first] = {"path": prefix + first, "oid": "0" * 40, **kind}
    return list(items.values())
