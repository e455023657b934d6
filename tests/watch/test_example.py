"""The script that is shipped: it is a nanoGPT-like script but for five lines, and goes on after a kill."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import rankwise as rw
from tests.conftest import REPOSITORY

SCRIPT = REPOSITORY / "examples/nanogpt_like.py"
STEPS = 60


def begun(out: Path, *words: str) -> subprocess.Popen[str]:
    sizes = ["--steps", str(STEPS), "--eval-interval", "10", "--n-embd", "32", "--n-layer", "2"]
    command = [sys.executable, str(SCRIPT), "--out", str(out), *sizes, *words]
    # One thread adds up in one order: the rows of two runs can be equal to the last digit.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finished(out: Path, *words: str) -> str:
    process = begun(out, *words)
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    return said


def test_five_lines_are_all_that_is_new():
    lines = SCRIPT.read_text().splitlines()
    assert sum(line.endswith("  # +") for line in lines) == 5
    rest = ast.parse("\n".join(line for line in lines if not line.endswith("  # +")))
    names = {node.id for node in ast.walk(rest) if isinstance(node, ast.Name)}
    assert not names & {"rw", "monitor"}


@pytest.mark.slow
def test_a_kill_leaves_no_trace_in_the_rows(tmp_path):
    said = finished(tmp_path / "whole")
    losses = [float(line.rpartition(" ")[2]) for line in said.splitlines()]
    assert losses[-1] < losses[0] - 0.3, "it learns"
    process = begun(tmp_path / "killed")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("iter 29"):
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    resumed = finished(tmp_path / "killed", "--resume")
    assert len(resumed.splitlines()) in (3, 4), "from the checkpoint of step 29, or the one before"
    assert said.endswith(resumed)
    rows = [(tmp_path / name / "ranks/products.csv").read_bytes() for name in ("whole", "killed")]
    assert rows[0] == rows[1]
    run = rw.open_run(tmp_path / "killed/ranks")
    assert run.steps == [0, 20, 40]
    assert not run.gaps


@pytest.mark.slow
def test_mixed_precision_is_watched_in_the_precision_of_the_weights(tmp_path):
    finished(tmp_path / "out", "--dtype", "bfloat16")
    run = rw.open_run(tmp_path / "out/ranks")
    assert run.steps == [0, 20, 40]
    rows = list(run.rows(40))
    assert {row["failure"] for row in rows} == {None}
    assert all(row["effective_rank_error"] < 1e-4 for row in rows)
    (start,), (end,) = (
        [
            row["frobenius_norm"]
            for row in run.rows(step)
            if (row["of"], row["site"], row["head"]) == ("change", "layers.1.ov", 2)
        ]
        for step in (20, 40)
    )
    assert end > start > 0
