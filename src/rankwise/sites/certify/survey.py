"""Certify many model types in processes of their own, and keep what was found as it comes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from queue import Queue
from threading import Thread, Timer
from typing import Any

from rankwise.errors import UserError, require
from rankwise.sites.certify.row import Row, as_line

# A type may need many seconds for one configuration, but it prints a line for each; one that takes its process down, or
# says nothing for so long, costs itself alone.
LONGEST_SILENCE = 600
# What is done with rows when they are there.
_AFTERWARDS = ("survey", "ship", "tables", "__main__")
# Importing transformers takes seconds, so a process does several types; it forgets them with what they leaked.
TYPES_IN_A_PROCESS = 20


def survey(
    types: Sequence[str], *, processes: int = 2, journal: Path | None = None, every_variant: bool = True
) -> Iterator[Row]:
    """The rows of many types, as they come.

    Arguments:
        types: model types of transformers.
        processes: how many to run at once.
        journal: a file that keeps each row; the types that it holds already are not tried again.
        every_variant: whether to try the variants of each type's configuration too.
    """
    done: dict[str, list[Row]] = {}
    if journal is not None:
        done = _read(journal)
        yield from (row for model_type in types for row in done.get(model_type, ()))
    left = [each for each in types if each not in done]
    found: Queue[list[Row] | Exception | None] = Queue()
    for start in range(processes):
        # Daemons: an interrupted run ends at once, and its journal holds what was done.
        Thread(target=_work, args=(left[start::processes], found, every_variant), daemon=True).start()
    working = processes
    while working:
        members = found.get()
        if isinstance(members, Exception):
            raise members
        if members is None:
            working -= 1
            continue
        if journal is not None:
            with journal.open("a", encoding="utf-8") as file:
                file.write("".join(f"{as_line(row)}\n" for row in members))
        yield from members


def _work(types: Sequence[str], found: Queue[list[Row] | Exception | None], every_variant: bool) -> None:
    """Put the rows of one type after the other, and None behind the last."""
    try:
        left = list(types)
        while left:
            for members in _process(left[:TYPES_IN_A_PROCESS], every_variant):
                found.put(members)
                left.remove(members[0].model_type)
        found.put(None)
    except Exception as error:
        found.put(error)


def _process(types: Sequence[str], every_variant: bool) -> Iterator[list[Row]]:
    """The rows of each type from one process; where it ends before its time, the last is the type that ended it."""
    command = [sys.executable, "-W", "ignore", "-m", "rankwise.sites.certify", "--rows", *types]
    if not every_variant:
        command.append("--own")
    waiting = list(types)
    members: list[Row] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        errors: list[str] = []
        reader = Thread(target=lambda lines: errors.extend(lines), args=(process.stderr,))
        reader.start()
        for line in _until_silent(process):
            if line.startswith('{"model_type"'):
                members.append(Row(**json.loads(line)))
            elif line.startswith("done "):
                yield members
                waiting.remove(line.split()[1])
                members = []
        code = process.wait()
        reader.join()
    if waiting:
        words = [line.strip() for line in errors if line.strip()][-1:] or [f"exit code {code}"]
        yield [*members, Row(waiting[0], {}, built=False, reason=f"its process ended: {words[0][:200]}")]


def _until_silent(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    while True:
        watch = Timer(LONGEST_SILENCE, process.kill)
        watch.start()
        try:
            line = process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            return
        yield line


def _read(journal: Path) -> dict[str, list[Row]]:
    """The rows of a journal by type; a new one starts with what they depend on."""
    basis = {"basis": _basis()}
    if not journal.exists():
        journal.write_text(json.dumps(basis) + "\n", encoding="utf-8")
        return {}
    first, *lines = journal.read_text(encoding="utf-8").splitlines()
    if first != json.dumps(basis):
        raise UserError(f"{journal} was made with other versions or other code: delete it, or give another file")
    done: dict[str, list[Row]] = {}
    row: Row | None = None
    try:
        for line in lines:
            row = Row(**json.loads(line))
            done.setdefault(row.model_type, []).append(row)
    except json.JSONDecodeError:  # the run was killed while it wrote the rows of this type
        done.pop(row.model_type if row is not None else "", None)
        kept = [as_line(row) for members in done.values() for row in members]
        journal.write_text("\n".join([first, *kept]) + "\n", encoding="utf-8")
    return done


def _basis() -> dict[str, Any]:
    """What rows depend on: the versions, the layouts, and the code that reads and proves them."""
    room = Path(str(files("rankwise.sites")))
    pages = sorted([*room.glob("layouts/*.toml"), *room.glob("*.py"), *room.glob("certify/*.py")])
    pages = [page for page in pages if page.stem not in _AFTERWARDS]
    digest = hashlib.sha256(b"".join(page.read_bytes() for page in pages))
    versions = {name: require(name, extra="hf").__version__ for name in ("transformers", "torch")}
    return {**versions, "sites": digest.hexdigest()[:16]}
