"""A glob of checkpoints becomes a series in the order of its steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints import open_series


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.mark.parametrize(
    ("names", "pattern", "steps"),
    [
        (["step10", "step2", "step1000"], "step*", [2, 10, 1000]),
        (["checkpoint-500", "checkpoint-50"], "checkpoint-*", [50, 500]),
        (["ckpt_00010.pt", "ckpt_00002.pt"], "*.pt", [2, 10]),
        (["v2_step3.safetensors", "v2_step11.safetensors"], "v2*", [3, 11]),
        (["m.mp4"], "*", None),
        (["step_1/model.safetensors", "step_20/model.safetensors"], "*/model.safetensors", [1, 20]),
        (["epoch.3", "epoch.12"], "epoch*", [3, 12]),
        (["step7"], "step*", [7]),
    ],
)
def test_steps_are_sorted_as_numbers(tmp_path: Path, names: list[str], pattern: str, steps: list[int] | None) -> None:
    make(tmp_path, *names)
    if steps is None:
        with pytest.raises(CheckpointError, match="has no step number"):
            open_series(tmp_path / pattern)
        return
    series = open_series(str(tmp_path / pattern))
    assert [step for step, _ in series] == steps
    assert all(str(step) in str(path.relative_to(tmp_path)) for step, path in series)


def test_a_directory_means_what_is_in_it(tmp_path: Path) -> None:
    make(tmp_path / "run[1]", "checkpoint-2/a", "checkpoint-10/a", "trainer.log")
    assert [step for step, _ in open_series(tmp_path / "run[1]")] == [2, 10]


def test_nothing_that_matches_and_steps_that_clash(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint matches .*step\*'"):
        open_series(tmp_path / "step*")
    make(tmp_path, "step1.pt", "step01.pt")
    with pytest.raises(CheckpointError, match="both look like step 1"):
        open_series(tmp_path / "step*")
