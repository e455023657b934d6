"""Processes that really stop: Ctrl-C and a kill in the middle, and a resumed scan that equals an undisturbed one."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rankwise as rw
from rankwise import cli
from tests import checkpoints

LONGEST_WAIT = 120.0


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of many layers, scanned from its own folder with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    return checkpoints.write(tmp_path / "model", checkpoints.llama(layers=150))


def stopped(place: Path, how: signal.Signals, *arguments: str) -> tuple[int, str, str]:
    """Run a command, send it a signal once it has kept some records, and return its code and what it printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rankwise", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + LONGEST_WAIT
    while sum(path.read_bytes().count(b"\n") for path in place.rglob("*.jsonl")) < 20:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(how)
    out, err = process.communicate(timeout=LONGEST_WAIT)
    return process.returncode, out, err


def without_time(record: dict) -> dict:
    return {key: value for key, value in record.items() if key != "created"}


@pytest.mark.slow
def test_control_c_prints_what_was_found_and_resume_finds_the_rest(model: Path, capsys: pytest.CaptureFixture) -> None:
    code, out, err = stopped(model.parent, signal.SIGINT, "scan", "model", "--json")
    assert code == 130
    found = re.fullmatch(
        r"rankwise: stopped after (\d+) of 451 sites; what was found is kept: the same command with --resume goes on "
        r"from there\n",
        err,
    )
    assert found, err
    partial = json.loads(out)
    assert partial["complete"] is False
    assert len(partial["sites"]) == int(found[1]) >= 19
    assert cli.main(["scan", "model", "--json", "--resume"]) == 0
    resumed = capsys.readouterr()
    assert resumed.err == f"rankwise: going on from {found[1]} sites that an interrupted run found\n"
    record = json.loads(resumed.out)
    assert without_time(record) == without_time(rw.scan("model").record)
    assert record["sites"][: len(partial["sites"])] == partial["sites"]
    assert list(model.parent.rglob("*.jsonl")) == []


@pytest.mark.slow
def test_a_kill_loses_no_more_than_the_site_at_hand(model: Path, capsys: pytest.CaptureFixture) -> None:
    code, out, err = stopped(model.parent, signal.SIGKILL, "scan", "model")
    assert (code, out, err) == (-signal.SIGKILL, "", "")
    (journal,) = model.parent.rglob("*.jsonl")
    kept = len(journal.read_text().splitlines()) - 1
    assert cli.main(["scan", "model", "--json", "--resume"]) == 0
    resumed = capsys.readouterr()
    # The last line may have been cut in the middle.
    assert re.search(rf"going on from ({kept}|{kept - 1}) sites", resumed.err)
    assert without_time(json.loads(resumed.out)) == without_time(rw.scan("model").record)


@pytest.mark.slow
def test_a_comparison_stops_and_resumes_too(model: Path, capsys: pytest.CaptureFixture) -> None:
    checkpoints.write(model.parent / "tuned", checkpoints.llama(layers=150, seed=1))
    code, out, err = stopped(model.parent, signal.SIGINT, "diff", "model", "tuned")
    assert code == 130
    assert "stopped after" in err
    assert "products and matrices" in err
    assert "This is a part: the work was interrupted" in out
    assert cli.main(["diff", "model", "tuned", "--json", "--resume"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert without_time(record) == without_time(rw.diff("model", "tuned").record)


def test_a_page_of_what_was_found_is_written_all_the_same(model: Path, capsys, monkeypatch) -> None:
    from rankwise.scans.scan import Scan

    of_site = Scan._of_site

    def stopping(self, site, following, reader) -> dict:
        if site.name == "layers.2.qk":
            raise KeyboardInterrupt
        return of_site(self, site, following, reader)

    monkeypatch.setattr(Scan, "_of_site", stopping)
    assert cli.main(["scan", "model", "--html", "page.html", "--parquet", "rows.parquet"]) == 130
    printed = capsys.readouterr()
    assert "wrote page.html" in printed.err
    assert "layers.1.ov" in Path("page.html").read_text()
    assert printed.out.rstrip().endswith(
        "This is a part: the work was interrupted, and --resume goes on where it stopped."
    )


@pytest.mark.slow
def test_a_terminal_shows_a_bar_with_the_time_left(model: Path) -> None:
    """On a real pseudo-terminal: the site at hand, what was read of how much, and the time left; gone at the end."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-m", "rankwise", "scan", "model", "--select", "layer=0-99"],
        stdout=subprocess.DEVNULL,
        stderr=follower,
        env=environment,
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:  # what Linux says at the end of a pseudo-terminal
            break
        if not piece:
            break
        shown += piece
    os.close(leader)
    assert process.wait() == 0
    text = shown.decode()
    assert re.search(r"layers\.\d+\.(qk|ov)", text)
    assert re.search(r"\d+(\.\d+)?/\d+(\.\d+)? [kM]B", text)
    assert re.search(r"\d+:\d\d:\d\d", text)
    assert text.rstrip().endswith(("\x1b[2K", "\x1b[?25h", "\x1b[1A\x1b[2K"))
