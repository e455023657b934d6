"""`rankwise certify`: what was proved for the release, and proofs made on the spot."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from rankwise import cli
from rankwise.sites.certify.tables import shipped_lines, summary

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


def test_without_types_it_prints_what_was_proved_for_the_release(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # No name is folded.
    assert cli.main(["certify"]) == 0
    shown = capsys.readouterr().out
    assert summary(shipped_lines()) in " ".join(shown.split())
    for line in shipped_lines():
        assert f" {line.model_type} " in shown or f"│{line.model_type}" in shown.replace(" ", "")
    assert "banded attention with global tokens" in " ".join(shown.split())


def test_the_page_is_written_from_what_ships(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "certified.md"
    assert cli.main(["certify", "--markdown", str(page)]) == 0
    assert " ".join(capsys.readouterr().out.split()) == summary(shipped_lines())
    assert page.read_text(encoding="utf-8").count("\n| ") == 1 + len(shipped_lines())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama", "--release"], "are about all types: give them without names"),
        (["llama", "--markdown", "page.md"], "are about all types: give them without names"),
        (["--write", "release.json"], "give --release with them"),
        (["--journal", "rows.jsonl"], "give --release with them"),
        (["--markdown", "no/such/folder/page.md"], "page.md cannot be written: there is no folder"),
    ],
)
def test_what_does_not_go_together_is_said(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["certify", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@needs_transformers
def test_a_type_is_proved_and_one_without_products_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["certify", "gpt2"]) == 0
    shown = capsys.readouterr().out
    assert "4 of 4 attention sites certified" in shown
    assert cli.main(["certify", "gpt2", "longformer"]) == 1
    shown = capsys.readouterr().out
    assert "longformer: no attention site was found" in shown
    assert "banded attention with global tokens" in " ".join(shown.split())
    assert cli.main(["certify", "lama"]) == 2
    assert "did you mean llama" in capsys.readouterr().err
