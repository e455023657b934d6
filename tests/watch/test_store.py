from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rankwise.errors import UserError
from rankwise.watch.lock import RunLock, is_written
from rankwise.watch.log import Entry, read_log
from rankwise.watch.run import open_run
from rankwise.watch.store import create, reopen
from tests.conftest import REPOSITORY
from tests.watch.stores import COLUMNS, HEADING, SITES, add, begun, is_whole, rows_of


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    begun(folder, range(0, 50, 10)).close()
    return folder


def test_what_was_written_is_read(tmp_path):
    store = begun(tmp_path / "run", range(3))
    store.append(Entry(3, time=3.0, kind="gap", reason="it rained"))
    add(store, 4)
    store.close()
    run = open_run(tmp_path / "run")
    assert is_whole(run)
    assert run.steps == [0, 1, 2, 4]
    assert [(gap.step, gap.reason) for gap in run.gaps] == [(3, "it rained")]
    assert run.snapshots[2].loss == 1 / 3
    assert (run.dropped, run.is_written) == ((), False)
    assert repr(run).endswith("run: 4 snapshots, steps 0 to 4, 1 gaps)")
    assert run.sites == SITES
    assert list(run.rows()) == [row for step in run.steps for row in run.rows(step)]


def test_what_is_not_there_is_said_in_one_line(tmp_path, finished):
    run = open_run(finished)
    with pytest.raises(UserError, match="no snapshot of step 17: the nearest is step 20"):
        list(run.rows(17))
    with pytest.raises(UserError, match="no spectra of the change at step 10"):
        run.spectra(10, of="change")
    with pytest.raises(UserError, match=r"is not a run: it has no run\.json"):
        open_run(tmp_path)
    with pytest.raises(UserError, match="is not a run: it is no directory"):
        open_run(tmp_path / "nothing")
    (tmp_path / "run.json").write_text('{"format": "rankwise-run", "version": 99, "rankwise": "7.0"}')
    with pytest.raises(UserError, match=r"version 99, this library reads version 1: read it with the rankwise 7\.0"):
        open_run(tmp_path)
    (tmp_path / "run.json").write_text('{"format": "rankwise-scan"}')
    with pytest.raises(UserError, match="does not say that this is a run"):
        open_run(tmp_path)


@pytest.mark.parametrize("step", [0, 1, 25, 40, 41])
def test_rewinding_forgets_a_step_and_what_came_after(finished, tmp_path, step):
    folder = shutil.copytree(finished, tmp_path / "run")
    store = reopen(folder, HEADING, SITES)
    kept = [each for each in range(0, 50, 10) if each < step]
    assert store.rewind(step) == 5 - len(kept)
    assert store.last_step == (kept[-1] if kept else None)
    add(store, step)
    store.close()
    run = open_run(folder)
    assert is_whole(run)
    assert run.steps == [*kept, step]
    assert run.dropped == ()


def test_a_run_that_goes_on_is_byte_for_byte_the_run_that_was_never_interrupted(finished, tmp_path):
    folder = tmp_path / "run"
    begun(folder, range(0, 30, 10)).close()
    store = reopen(folder, HEADING, SITES)
    store.rewind(20)
    for step in (20, 30, 40):
        add(store, step)
    store.close()
    for name in ("products.csv", "steps.jsonl"):
        assert (folder / name).read_bytes() == (finished / name).read_bytes()


@given(data=some.data())
def test_a_log_cut_at_any_byte_loses_at_most_the_line_in_flight(finished, tmp_path_factory, data):
    folder = shutil.copytree(finished, tmp_path_factory.mktemp("cut") / "run")
    log = (folder / "steps.jsonl").read_bytes()
    end = data.draw(some.integers(0, len(log)))
    torn = log[:end] + data.draw(some.sampled_from([b"", b"\0\0\0", b"{"]))
    (folder / "steps.jsonl").write_bytes(torn)
    changed = torn != log
    whole = log[:end].count(b"\n")
    run = open_run(folder)
    assert run.steps == list(range(0, 50, 10))[:whole]
    assert bool(run.dropped) == (whole < 5 or changed)
    assert is_whole(run)
    assert open_run(folder).dropped == ()


@given(end=some.integers(0, 700))
def test_rows_cut_at_any_byte_lose_the_snapshots_that_they_were_of(finished, tmp_path_factory, end):
    folder = shutil.copytree(finished, tmp_path_factory.mktemp("cut") / "run")
    content = (folder / "products.csv").read_bytes()[:end]
    (folder / "products.csv").write_bytes(content)
    run = open_run(folder)
    assert run.steps == [entry.step for entry in open_run(finished).snapshots if entry.rows[1] <= end]
    assert is_whole(run)


def test_a_line_that_a_disk_has_spoilt_costs_its_own_snapshot_alone(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    lines = (folder / "steps.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "steps.jsonl").write_bytes(b"".join([*lines[:2], b"\0" * 40 + b"\n", *lines[3:]]))
    run = open_run(folder)
    assert run.steps == [0, 10, 30, 40]
    assert any("line 3 of the log cannot be read" in said for said in run.dropped)
    assert list(run.to_pandas()["step"].unique()) == [0, 10, 30, 40]
    assert run.to_arrow().num_rows == 8


def test_spectra_that_are_lost_or_spoilt_leave_the_rows(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "spectra/000000000010.safetensors").unlink()
    (folder / "spectra/000000000040.safetensors").write_bytes(b"\0" * 30)
    run = open_run(folder)
    assert run.steps == [0, 10, 20, 30, 40]
    assert [entry.step for entry in run.snapshots if not entry.spectra] == [10, 40]
    assert any("step 10: its spectra are missing" in said for said in run.dropped)
    with pytest.raises(UserError, match="holds no spectra of step 40"):
        run.spectra(40)


def test_only_reading_changes_nothing(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    before = (folder / "products.csv").read_bytes() + b"50,product,lay"
    (folder / "products.csv").write_bytes(before)
    run = open_run(folder, repair=False)
    assert run.dropped == ("the snapshot in flight: it was not finished",)
    assert (folder / "products.csv").read_bytes() == before
    assert run.to_arrow().num_rows == 10
    assert open_run(folder).dropped == run.dropped
    assert open_run(folder).dropped == ()


def test_a_run_is_read_while_it_grows(tmp_path):
    store = begun(tmp_path / "run", range(2))
    # What a writer has begun is neither dropped nor read.
    os.pwrite(store._rows, b"half a row", store._rows_end)
    (tmp_path / "run/spectra/000000000002.safetensors").write_bytes(b"half")
    run = open_run(tmp_path / "run")
    assert (run.is_written, run.dropped, run.steps) == (True, (), [0, 1])
    assert (tmp_path / "run/spectra/000000000002.safetensors").exists()
    add(store, 2)
    assert open_run(tmp_path / "run").steps == [0, 1, 2]
    store.close()
    assert not open_run(tmp_path / "run").is_written


@pytest.mark.slow
def test_two_cannot_write_one_run(tmp_path):
    store = begun(tmp_path / "run", range(1))
    with pytest.raises(UserError, match="is being written by this process already: close its monitor"):
        reopen(tmp_path / "run", HEADING, SITES)
    program = (
        "import sys; from pathlib import Path; from tests.watch.stores import HEADING, SITES; "
        "from rankwise.watch.store import reopen; reopen(Path(sys.argv[1]), HEADING, SITES)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert f"is being written by process {os.getpid()} on " in done.stderr
    store.close()
    assert subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True).returncode == 0
    # It never closed the run, and ended.
    assert not is_written(tmp_path / "run")
    reopen(tmp_path / "run", HEADING, SITES).close()


def test_where_a_disk_has_no_locks_the_file_says_who_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("rankwise.watch.lock.fcntl", None)
    lock = RunLock(tmp_path)
    owner = json.loads((tmp_path / "lock").read_text())
    assert owner["pid"] == os.getpid()
    lock.release()
    RunLock(tmp_path).release()
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (tmp_path / "lock").write_text(json.dumps({**owner, "pid": sleeper.pid, "started": None}))
    assert is_written(tmp_path)
    with pytest.raises(UserError, match=f"process {sleeper.pid} on"):
        RunLock(tmp_path)
    (tmp_path / "lock").write_text(json.dumps({**owner, "pid": sleeper.pid, "started": "17"}))
    assert not is_written(tmp_path), "the number belongs to another process by now"
    (tmp_path / "lock").write_text(json.dumps({**owner, "pid": sleeper.pid, "started": None}))
    sleeper.communicate(b"\n")
    assert not is_written(tmp_path), "that process has ended"
    (tmp_path / "lock").write_text(json.dumps({**owner, "host": "elsewhere"}))
    with pytest.raises(UserError, match=r"process .* on elsewhere"):
        RunLock(tmp_path)


def test_a_run_is_begun_once_and_goes_on_as_it_began(tmp_path, finished):
    with pytest.raises(UserError, match="holds a run already: give resume=True to go on with it, or another run="):
        create(finished, HEADING, SITES)
    with pytest.raises(UserError, match=r'was begun with keep "spectra", now it is "measures": say the same'):
        reopen(finished, {**HEADING, "keep": "measures"}, SITES)
    with pytest.raises(UserError, match=r"watches other sites than these \(layers.0.ov\)"):
        reopen(finished, HEADING, [*SITES, {"name": "layers.0.ov", "widths": [8, 4, 8]}])
    assert not is_written(finished)
    (tmp_path / "products.csv").write_text("price,name\n")
    with pytest.raises(UserError, match=r"holds products.csv but no run\.json: give another run="):
        create(tmp_path, HEADING, SITES)
    assert (tmp_path / "products.csv").read_text() == "price,name\n"
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot make the run .*: Not a directory"):
        create(tmp_path / "file/run", HEADING, SITES)


@pytest.mark.slow
def test_a_full_disk_costs_a_snapshot_and_no_more(tmp_path):
    """The limit on file sizes stands in for a full disk: the system refuses the write in the middle."""
    program = (
        "import resource, signal, sys; from pathlib import Path; from tests.watch.stores import add, begun\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "store = begun(Path(sys.argv[1]), range(3))\n"
        "for limit, step in ((470, 3), (60, 4)):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))\n"
        "    try:\n        add(store, step); print('written')\n"
        "    except Exception as error:\n        print(type(error).__name__)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "add(store, 6); import os; os._exit(1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run")], cwd=REPOSITORY, capture_output=True, text=True
    )
    run = open_run(tmp_path / "run")
    assert done.stdout.split() == ["OSError", "UserError"], done.stdout + done.stderr
    assert run.steps == [0, 1, 2, 6], done.stdout + done.stderr
    # The last attempt that failed left a file of spectra, which the next opening has cleared away.
    assert is_whole(run)


def test_frames_hold_whole_numbers_texts_and_gaps(finished):
    run = open_run(finished)
    arrow = run.to_arrow()
    assert arrow.column_names == list(COLUMNS)
    assert [str(arrow.schema.field(name).type) for name in ("step", "site", "effective_rank")] == [
        "int64",
        "string",
        "double",
    ]
    assert arrow.to_pylist() == list(run.rows())
    frame = run.to_pandas()
    assert str(frame["step"].dtype) == "int64"
    assert frame["effective_rank"].isna().sum() == 5
    assert frame["failure"].isna().all()
    assert frame.loc[frame["head"] == 0, "effective_rank"].tolist() == [1 + step / 8 for step in run.steps]


def test_frames_of_odd_steps_keep_quoted_reasons(tmp_path):
    begun(tmp_path / "run", range(1, 2)).close()
    run = open_run(tmp_path / "run")
    assert run.to_pandas()["failure"][1] == run.to_arrow()["failure"][1].as_py() == rows_of(1)[1]["failure"]


def test_an_empty_run_has_empty_frames(tmp_path):
    begun(tmp_path / "run").close()
    run = open_run(tmp_path / "run")
    assert (run.steps, run.to_arrow().num_rows, len(run.to_pandas())) == ([], 0, 0)
    assert list(run.to_pandas().columns) == list(COLUMNS)


def test_polars_and_duckdb_read_the_same(finished):
    run = open_run(finished)
    import duckdb
    import polars

    assert run.to_polars().to_dicts() == list(run.rows())
    assert run.to_polars().schema["layer"] == polars.Int64
    found = duckdb.sql(
        f"select step, loss, effective_rank from '{finished}/products.csv' join '{finished}/steps.jsonl' using (step) "
        "where head = 0 order by step"
    ).fetchall()
    assert found == [(step, 1 / (1 + step), 1 + step / 8) for step in run.steps]


def test_a_log_says_what_it_left_out():
    good = b"".join(Entry(step, time=0.0).line() for step in (1, 2))
    entries, dropped = read_log(
        good + Entry(2, time=0.0).line() + b"[1]\n" + b'{"step":9}\n' + Entry(3, time=0.0).line()
    )
    assert [entry.step for entry in entries] == [1, 2, 3]
    assert dropped == [
        "line 3 of the log repeats step 2",
        "line 4 of the log cannot be read",
        "line 5 of the log cannot be read",
    ]
