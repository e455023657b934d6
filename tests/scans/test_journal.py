"""A journal survives being cut off anywhere."""

from pathlib import Path

import pytest

from rankwise.scans.journal import Journal


def record(name: str) -> dict:
    return {"name": name, "heads": [{"head": 0, "values": [1.0]}]}


def resumed(folder: Path) -> list[str]:
    journal = Journal("scan", resume=True, folder=folder)
    journal.close(finished=False)
    return list(journal.done)


def write(folder: Path) -> Path:
    journal = Journal("scan", resume=False, folder=folder)
    for name in ("a", "b", "c"):
        journal.add(record(name))
    journal.close(finished=False)
    return journal.path


def test_resumes_with_what_was_found(tmp_path: Path) -> None:
    write(tmp_path)
    again = Journal("scan", resume=True, folder=tmp_path)
    assert list(again.done) == ["a", "b", "c"]
    again.add(record("d"))
    again.close(finished=False)
    assert resumed(tmp_path) == ["a", "b", "c", "d"]


def test_every_cut_leaves_whole_records_and_a_file_that_can_go_on(tmp_path: Path) -> None:
    path = write(tmp_path)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        journal = Journal("scan", resume=True, folder=tmp_path)
        # A record whose line end alone is missing is whole.
        assert len(journal.done) in (whole[:cut].count(b"\n"), whole[: cut + 1].count(b"\n"))
        journal.add(record("z"))
        journal.close(finished=False)
        assert "z" in resumed(tmp_path)


def test_afresh_forgets_and_finishing_removes(tmp_path: Path) -> None:
    path = write(tmp_path)
    journal = Journal("scan", resume=False, folder=tmp_path)
    assert journal.done == {}
    journal.close(finished=True)
    assert not path.exists()


@pytest.mark.parametrize("line", ["[]", "7", '{"name": 3, "heads": []}', '{"name": "x"}', "\x00\xff"])
def test_lines_of_something_else_are_passed_over(tmp_path: Path, line: str) -> None:
    path = write(tmp_path)
    path.write_text(line + "\n" + path.read_text(), encoding="utf-8")
    assert resumed(tmp_path) == ["a", "b", "c"]
