"""A journal survives being cut off anywhere, refuses what was not interrupted, and never stands in the way."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rankwise.errors import UserError
from rankwise.scans.journal import KEPT_SECONDS, Journal, Subject

SUBJECT = Subject(
    source="/models/a", contents="1234", sites="ab", settings={"method": "auto", "select": None}, rankwise="0.1"
)


def record(name: str) -> dict:
    return {"name": name, "heads": [{"head": 0, "values": [1.0]}]}


def resumed(folder: Path) -> dict:
    with Journal(SUBJECT, resume=True, folder=folder) as journal:
        return journal.done


def write(folder: Path, subject: Subject = SUBJECT) -> Path:
    with Journal(subject, resume=False, folder=folder) as journal:
        for name in ("a", "b", "c"):
            journal.add(name, record(name))
    return journal.path


def test_resumes_with_what_was_found(tmp_path: Path) -> None:
    write(tmp_path)
    with Journal(SUBJECT, resume=True, folder=tmp_path) as again:
        assert again.done == {name: record(name) for name in "abc"}
        assert again.resumed == 3
        again.add("d", record("d"))
    assert list(resumed(tmp_path)) == ["a", "b", "c", "d"]


def test_every_cut_leaves_whole_records_and_a_file_that_can_go_on(tmp_path: Path) -> None:
    path = write(tmp_path)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with Journal(SUBJECT, resume=True, folder=tmp_path) as journal:
            # The first line says what it is of; a record whose line end alone is missing is whole.
            lines = {max(0, whole[:end].count(b"\n") - 1) for end in (cut, cut + 1)}
            assert len(journal.done) in lines
            journal.add("z", record("z"))
        assert "z" in resumed(tmp_path)


def test_afresh_forgets_and_discarding_removes(tmp_path: Path) -> None:
    write(tmp_path)
    with Journal(SUBJECT, resume=False, folder=tmp_path) as journal:
        assert journal.done == {}
        journal.discard()
    assert list(tmp_path.iterdir()) == []
    assert resumed(tmp_path) == {}


@pytest.mark.parametrize("line", ["[]", "7", '{"key": 3, "record": {}}', '{"key": "x"}', "\x00\xff"])
def test_lines_of_something_else_are_passed_over(tmp_path: Path, line: str) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text() + line + "\n")
    assert list(resumed(tmp_path)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (replace(SUBJECT, contents="5678"), "/models/a has changed since its scan was interrupted"),
        (replace(SUBJECT, sites="cd"), "was interrupted with other layouts: say the same"),
        (replace(SUBJECT, rankwise="0.0"), r"begun by rankwise 0\.0"),
        (
            replace(SUBJECT, settings={"method": "qr", "select": "kind=qk"}),
            r"interrupted with method qr \(now auto\), select kind=qk \(now none\): say the same, or leave out",
        ),
    ],
)
def test_another_interrupted_run_of_the_same_checkpoint_is_told_apart(
    tmp_path: Path, other: Subject, says: str
) -> None:
    path = write(tmp_path, other)
    with pytest.raises(UserError, match=says) as caught:
        Journal(SUBJECT, resume=True, folder=tmp_path)
    assert "\n" not in str(caught.value)
    assert path.exists()


@pytest.mark.parametrize("other", [{"source": "/models/b"}, {"base": "/models/c"}])
def test_another_checkpoint_s_run_is_none_of_our_business(tmp_path: Path, other: dict) -> None:
    write(tmp_path, replace(SUBJECT, **other))
    assert resumed(tmp_path) == {}


def test_stopped_before_anything_was_found_is_resumed_from_there(tmp_path: Path) -> None:
    Journal(SUBJECT, resume=False, folder=tmp_path).close()
    write(tmp_path, replace(SUBJECT, settings={}))
    assert resumed(tmp_path) == {}


def test_journals_that_nobody_came_back_for_go_after_a_month(tmp_path: Path) -> None:
    old, young = (write(tmp_path, replace(SUBJECT, source=name)) for name in ("old", "young"))
    for path, age in ((old, KEPT_SECONDS + 60), (young, KEPT_SECONDS - 60)):
        os.utime(path, (time.time() - age,) * 2)
    write(tmp_path)
    assert not old.exists()
    assert young.exists()


def test_without_a_place_to_write_the_work_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Journal(SUBJECT, resume=False, folder=tmp_path / "file" / "scans") as journal:
        journal.add("a", record("a"))
        assert journal.problem is not None
        assert "Not a directory" in journal.problem
        journal.discard()


def test_a_disk_that_fills_up_ends_the_journal_and_not_the_work(tmp_path: Path) -> None:
    journal = Journal(SUBJECT, resume=False, folder=tmp_path)
    journal.close()
    journal._file = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115 - the journal closes it
    journal.add("a", record("a"))
    assert journal.problem is not None
    assert "No space left" in journal.problem
    journal.add("b", record("b"))
    journal.discard()
