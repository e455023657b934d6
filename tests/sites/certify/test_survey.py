"""Many types in processes of their own: rows as they come, what takes a process down, and going on after a stop."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rankwise.errors import UserError
from rankwise.sites.certify import survey as page
from rankwise.sites.certify.row import Row, as_line
from rankwise.sites.certify.survey import survey

CHILD = """
import json, os, sys, time
for word in (each for each in sys.argv[1:] if not each.startswith("-") and each != "rankwise.sites.certify"):
    if word == "ignore":
        continue
    if word == "dies":
        print("no memory left", file=sys.stderr)
        os._exit(9)
    if word == "sleeps":
        time.sleep(60)
    for changes in ({}, {"switch": True}):
        print("a word of its own", flush=True)
        print(json.dumps({"model_type": word, "changes": changes, "sites": 2, "passed": 2, "by_value": 2}), flush=True)
    print("done " + word, flush=True)
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of Python a script that plays one type after the other, and dies when a test says so."""
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    starter = tmp_path / "starter"
    starter.write_text(f'#!/bin/sh\necho started >> {tmp_path}/starts\nexec {sys.executable} {script} "$@"\n')
    starter.chmod(0o755)
    monkeypatch.setattr(page.sys, "executable", str(starter))
    return tmp_path


def starts(folder: Path) -> int:
    return len((folder / "starts").read_text().splitlines())


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_every_type_has_its_rows_whoever_does_it(child: Path, processes: int) -> None:
    types = ["one", "two", "three", "four"]
    found = list(survey(types, processes=processes))
    assert sorted(row.model_type for row in found) == sorted(types * 2)
    assert {str(row.changes) for row in found} == {"{}", "{'switch': True}"}
    assert starts(child) == min(processes, len(types))


def test_a_type_that_takes_its_process_down_costs_itself_alone(child: Path) -> None:
    found = {row.model_type: row for row in survey(["one", "dies", "two"], processes=1)}
    assert found["dies"].reason == "its process ended: no memory left"
    assert found["dies"].sites == 0
    assert found["one"].by_value == found["two"].by_value == 2
    assert starts(child) == 2


def test_a_type_that_says_nothing_for_too_long_is_stopped(child: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "LONGEST_SILENCE", 0.5)
    found = {row.model_type: row for row in survey(["sleeps", "one"], processes=1)}
    assert found["sleeps"].reason.startswith("its process ended: exit code")
    assert found["one"].by_value == 2


def test_a_journal_goes_on_where_a_run_stopped(child: Path) -> None:
    journal = child / "rows.jsonl"
    coming = survey(["one", "two", "three"], processes=1, journal=journal)
    assert next(coming).model_type == "one"
    coming.close()
    held = len(journal.read_text().splitlines())
    assert held >= 1 + 2
    before = starts(child)
    found = list(survey(["one", "two", "three"], processes=1, journal=journal))
    assert sorted(row.model_type for row in found) == sorted(["one", "two", "three"] * 2)
    assert list(survey(["one", "two", "three"], processes=1, journal=journal)) == found
    assert starts(child) == before + 1


def test_a_line_that_was_cut_off_costs_its_type_alone(child: Path) -> None:
    journal = child / "rows.jsonl"
    whole = list(survey(["one", "two"], processes=1, journal=journal))
    text = journal.read_text()
    journal.write_text(text[:-10])
    again = list(survey(["one", "two"], processes=1, journal=journal))
    assert sorted(map(as_line, again)) == sorted(map(as_line, whole))
    assert journal.read_text() == text


def test_a_journal_of_other_code_is_refused(child: Path) -> None:
    journal = child / "rows.jsonl"
    journal.write_text(json.dumps({"basis": {"torch": "1.0"}}) + "\n")
    with pytest.raises(UserError, match=r"rows\.jsonl was made with other versions or other code: delete it"):
        list(survey(["one"], journal=journal))


def test_a_problem_of_a_worker_is_not_kept_secret(child: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page.sys, "executable", str(child / "nothing-here"))
    with pytest.raises(FileNotFoundError):
        list(survey(["one"], processes=1))


@pytest.mark.slow  # it imports transformers
def test_a_real_process_prints_real_rows() -> None:
    (row,) = survey(["gpt2"], processes=1, every_variant=False)
    assert isinstance(row, Row)
    assert (row.model_type, row.sites, row.by_value) == ("gpt2", 4, 4)
