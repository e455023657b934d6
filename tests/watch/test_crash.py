"""A process that writes a run is killed at random instants, 200 times, and the run is opened each time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

KILLS = 200

# One process forks the writers and kills them, so that nobody waits 200 times for torch to be imported. A writer says
# through a pipe what it is about to forget and what is safe: what it said last must be what is found.
PROGRAM = """
import json, os, random, select, signal, sys, time
from pathlib import Path
from rankwise.errors import UserError
from rankwise.watch.run import open_run
from rankwise.watch.store import create, reopen
from tests.watch.stores import HEADING, SITES, add, is_whole

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
chance = random.Random(7)


def write(pipe, seed):
    chance = random.Random(seed)
    store = reopen(folder, HEADING, SITES) if (folder / "run.json").exists() else create(folder, HEADING, SITES)
    if store.entries and chance.random() < 0.2:
        back = chance.choice(store.entries[-4:]).step
        os.write(pipe, b"r %d\\n" % back)
        store.rewind(back)
    step = -1 if store.last_step is None else store.last_step
    while True:
        step += chance.randint(1, 3)
        os.write(pipe, b"b %d\\n" % step)
        add(store, step)
        os.write(pipe, b"s %d\\n" % step)


safe, seen = [], {"kills": 0, "none": 0, "dropped": 0, "most": 0, "unsaid": 0}
for kill in range(kills):
    read, pipe = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            write(pipe, kill)
        except BaseException as error:
            os.write(2, repr(error).encode())
        os._exit(3)
    os.close(pipe)
    # A quarter die at any instant from their first on, the others while they write, however slow the machine is.
    if kill % 4:
        select.select([read], [], [])
    time.sleep(chance.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), status
    with os.fdopen(read) as said:
        words = [line.split() for line in said.read().splitlines()]
    begun = back = None
    for act, step in words:
        step = int(step)
        if act == "r":
            back, before = step, safe
            safe = [each for each in safe if each < step]
        elif act == "s":
            safe.append(step)
        begun = step if act == "b" else None
    seen["kills"] += 1
    try:
        run = open_run(folder)
    except UserError:
        assert not safe and not (folder / "run.json").exists(), "a run that had begun is gone"
        seen["none"] += 1
        continue
    # The one in flight may be safe already, without anybody having heard of it; so may a rewinding not have happened.
    possible = [safe, [*safe, begun]] if begun is not None else [safe]
    if words and words[-1][0] == "r":
        possible.append(before)
    assert run.steps in possible, (run.steps, possible, words)
    assert is_whole(run) and not run.is_written
    seen["unsaid"] += run.steps != safe
    seen["dropped"] += bool(run.dropped)
    safe = run.steps
    seen["most"] = max(seen["most"], len(safe))
    assert open_run(folder).dropped == ()
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_a_writer_killed_at_any_instant_leaves_a_run_that_opens(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "run"), str(KILLS)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    seen = json.loads(done.stdout)
    assert seen["kills"] == KILLS
    # Killed while beginning, while writing, and while much was safe: otherwise the instants were not random.
    assert seen["dropped"] > KILLS // 20, seen
    assert seen["most"] > 20, seen
