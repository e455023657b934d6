"""A prediction beside a simulation: its errors, its table, and what does not fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import torch
from rich.console import Console

from rankwise.errors import UserError
from rankwise.theory import Experiment, SideBySide


@dataclass(frozen=True)
class Two(Experiment):
    """Two comparisons and something else."""

    first_thing: SideBySide
    second: SideBySide
    count: int = field(kw_only=True)


def test_errors_are_the_largest_ones() -> None:
    both = SideBySide(torch.tensor([2.0, -4.0]), simulated=torch.tensor([2.5, -4.0]))
    assert (both.error, both.relative_error) == (0.5, 0.125)
    zero = SideBySide(torch.zeros(2), simulated=torch.tensor([0.0, 0.25]))
    assert zero.relative_error == zero.error == 0.25
    assert SideBySide(torch.zeros(0), simulated=torch.zeros(0)).error == 0.0


def test_nan_is_never_taken_for_agreement() -> None:
    both = SideBySide(torch.ones(2), simulated=torch.tensor([1.0, math.nan]))
    assert math.isnan(both.error)
    assert not both.error < 1.0


def test_what_differs_in_shape_is_refused() -> None:
    with pytest.raises(UserError, match="give one number for the other"):
        SideBySide(torch.ones(2), simulated=torch.ones(1, 2))


def test_an_experiment_lists_and_prints_its_comparisons() -> None:
    one = SideBySide(torch.ones(1), simulated=torch.full((1,), 1.5))
    many = SideBySide(torch.arange(9.0), simulated=torch.arange(9.0))
    record = Two(one, many, count=3)
    assert list(record.comparisons) == ["first_thing", "second"]
    console = Console(record=True, width=100)
    console.print(record)
    text = console.export_text()
    assert "first thing" in text
    assert "9 of at most 8" in text
    assert "5.0e-01" in text
    assert repr(one) == "SideBySide(predicted=1, simulated=1.5, relative_error=5.0e-01)"
