"""A file is there whole or as it was, whatever stands in the way; what cannot be written is known before."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.errors import UserError
from rankwise.files import check_writable, write_whole


def test_writes_text_and_bytes_and_leaves_nothing_beside(tmp_path: Path) -> None:
    assert write_whole(tmp_path / "a.txt", "grün").read_text(encoding="utf-8") == "grün"
    assert write_whole(str(tmp_path / "b.bin"), b"\x00\xff").read_bytes() == b"\x00\xff"
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.bin"]


def test_a_new_file_has_the_usual_permissions_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    usual.touch()
    assert stat.S_IMODE(write_whole(tmp_path / "new", "x").stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)
    usual.chmod(0o640)
    assert stat.S_IMODE(write_whole(usual, "x").stat().st_mode) == 0o640


def test_links_are_followed_and_devices_stay_devices(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    (tmp_path / "sink").symlink_to(os.devnull)
    check_writable(tmp_path / "sink")
    write_whole(tmp_path / "sink", "gone")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_name_that_is_no_unicode_does_not_stop_the_text(tmp_path: Path) -> None:
    assert write_whole(tmp_path / "a", "a\udce9b").read_text() == "a?b"


@pytest.mark.parametrize("act", [check_writable, lambda path: write_whole(path, "x")], ids=["check", "write"])
@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("nowhere/file", "the folder .*nowhere does not exist"),
        ("folder", "cannot write .*folder: .*directory"),
        ("file/inside", "does not exist"),
        ("/proc/self/nothing/x", "does not exist"),
        ("/proc/x", "cannot write /proc/x: No such file"),
        ("a" * 300, "cannot write a+…?: File name too long"),
    ],
)
def test_what_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch, act, place: str, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=says) as caught:
        act(place)
    assert "\n" not in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_full_disk_leaves_the_old_file_and_no_fragment(tmp_path: Path) -> None:
    """The limit on file sizes stands in for a full disk: the system refuses the write in the middle."""
    (tmp_path / "page").write_text("old")
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
        "from rankwise.files import write_whole; write_whole(sys.argv[1], 'x' * 5000)"
    )
    assert hasattr(resource, "RLIMIT_FSIZE")
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "page")], capture_output=True, text=True)
    assert f"UserError: cannot write {tmp_path}/page: File too large" in done.stderr
    assert (tmp_path / "page").read_text() == "old"
    assert os.listdir(tmp_path) == ["page"]
