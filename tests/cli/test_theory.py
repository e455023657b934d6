"""`rankwise theory`: pages, tables and JSON, and one line for what cannot be asked."""

from __future__ import annotations

import json
import math

import pytest

from rankwise import theory
from rankwise.cli import main

SMALL = ["--width", "3", "--samples", "16", "--stages", "3"]


def test_the_gallery_is_written_and_printed(tmp_path, capsys) -> None:
    page = tmp_path / "gallery.html"
    words = [*SMALL, "--alpha", "0.1", "--decay", "0.2", "--decay", "0.6"]
    assert main(["theory", "gallery", "--html", str(page), "--json", *words]) == 0
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert [run["alpha"] for run in record["diagonal"]["runs"]] == [0.1]
    assert [run["decay"] for run in record["decay"]["runs"]] == [0.2, 0.6]
    assert "rankwise theory" in page.read_text(encoding="utf-8")
    assert printed.err.splitlines()[-1] == f"wrote {page}"
    assert "the diagonal head at alpha = 0.1" in printed.err


def test_stages_are_predicted_and_measured(capsys) -> None:
    assert main(["theory", "stages", "--json", "--alpha", "1e-8", "--alpha", "1e-100", *SMALL]) == 0
    record = json.loads(capsys.readouterr().out)
    path = theory.greedy(theory.head_toy(width=3, samples=16, seed=1).problem, stages=3)
    assert [stage["time"] for stage in record["stages"]] == path.times.tolist()
    assert [stage["name"] for stage in record["stages"]] == [str(stage.place) for stage in path.stages]
    assert record["alphas"] == pytest.approx([1e-8, 1e-100])
    for stage, slope in zip(record["stages"], record["slopes"][0], strict=True):
        assert slope is None or slope == pytest.approx(stage["time"], rel=0.02)


def test_the_tables_of_a_regression_and_its_assumptions(capsys) -> None:
    words = ["--problem", "regression", "--width", "6", "--samples", "3", "--alpha", "1e-8", "--check"]
    assert main(["theory", "stages", *words]) == 0
    text = capsys.readouterr().out
    assert "nothing moves any more" in text
    assert "alpha 1e-8" in text
    assert "curvature (4.3)" in text
    assert " yes" in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["stages", "--alpha", "1"], "give scales between 0 and 1"),
        (["stages", "--alpha", "nan"], "give scales between 0 and 1"),
        (["stages", "--problem", "images"], "give head or regression"),
        (["stages", "--width", "0"], "width"),
        (["gallery", "--alpha", "2"], "scales between 0 and 1"),
        (["gallery", "--decay=-1"], "not negative"),
        (["gallery", "--html", "nowhere/at/all.html"], "nowhere"),
        (["draw"], "draw"),
    ],
)
def test_what_cannot_be_asked_is_one_line(words, text, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["theory", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert text in printed.err.splitlines()[-1]
    assert "Traceback" not in printed.err


def test_infinities_leave_the_record_as_null(capsys) -> None:
    assert main(["theory", "stages", "--json", "--alpha", "0.5", "--problem", "regression", "--width", "2"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["stages"][-1]["margin"] is None
    assert all(value is None or math.isfinite(value) for row in record["measured"] for value in row)
