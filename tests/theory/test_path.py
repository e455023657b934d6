"""Paths as people read them, and what training tends to at any moment of one."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from rankwise import theory
from tests.theory.worked import everyone_stays, one_leaves_and_returns, small_head


def shown(path: theory.Path) -> list[list[str]]:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(path)
    return [line.split() for line in console.export_text().splitlines()]


def test_the_table_says_who_enters_and_who_leaves() -> None:
    rows = shown(one_leaves_and_returns().path)
    fourth = next(row for row in rows if row[:1] == ["4"])
    assert fourth[:6] == ["4", "3.6551", "2", "+", "3", "3"]
    fifth = next(row for row in rows if row[:1] == ["5"])
    # The last loss is rounding, and shown as nothing.
    assert (fifth[2:5], fifth[-1]) == (["3", "+", "-"], "0")


def test_a_stage_of_a_head_fits_a_line_of_a_terminal() -> None:
    rows = shown(small_head().path)
    first = next(row for row in rows if row[:1] == ["1"])
    assert " ".join(first[2:10]) == "6 + layer 0 head 0 VO 2"
    assert len([row for row in rows if row and row[0].isdigit()]) == 8


def test_a_path_that_ended_early_says_so() -> None:
    path = theory.greedy(theory.diagonal_linear(torch.eye(2), torch.ones(2)))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(path)
    assert "INCOMPLETE: coordinates 0, 1 tie at time 1" in console.export_text()
    assert "tied" in repr(path)


def test_at_any_time_it_is_the_last_plateau_and_the_drift_since() -> None:
    path = everyone_stays().path
    for before, after in zip(path.plateaus, path.plateaus[1:], strict=False):
        middle = path.at((before.time + after.time) / 2)
        assert torch.equal(middle.product, before.product)
        idle = before.product == 0
        half = (before.log_scale + after.log_scale) / 2
        torch.testing.assert_close(middle.log_scale[idle], half[idle], rtol=0, atol=1e-9)
        assert middle.loss == before.loss
    assert torch.equal(path.at(path.stages[0].time).product, path.stages[0].product)
    assert torch.equal(path.at(1e9).product, path.stages[-1].product)


def test_lists_of_stages_and_plateaus_fit_together() -> None:
    path = everyone_stays().path
    assert path.products.shape == (6, 5)
    assert path.losses.shape == (6,)
    assert path.times.shape == (5,)
    assert path.losses[0].item() == pytest.approx(path.start.loss)
    assert repr(path) == "Path(5 stages, 0.4891: 0, 0.7289: 1, 1.966: 3, 4.103: 2, 5.832: 4; stationary)"
