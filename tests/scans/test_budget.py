"""One budget over many matrices: as good as trying everything, and honest where it is not."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.scans import budget as budgets
from rankwise.scans.budget import allocate

ROWS = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=4).map(lambda row: sorted(row, reverse=True))
MATRICES = st.lists(st.tuples(ROWS, st.integers(1, 9)), min_size=1, max_size=4)


def tried(energies: list[list[float]], units: list[int], budget: int) -> float:
    """The most energy that any ranks within the budget keep."""
    return max(
        sum(sum(row[:rank]) for row, rank in zip(energies, ranks, strict=True))
        for ranks in product(*(range(len(row) + 1) for row in energies))
        if sum(unit * rank for unit, rank in zip(units, ranks, strict=True)) <= budget
    )


@given(MATRICES, st.integers(0, 60))
def test_nothing_within_the_budget_keeps_more(matrices: list[tuple[list[float], int]], budget: int) -> None:
    energies, units = [row for row, _ in matrices], [unit for _, unit in matrices]
    found = allocate(energies, units, budget)
    assert sum(unit * rank for unit, rank in zip(units, found.ranks, strict=True)) <= budget
    assert found.kept == pytest.approx(
        sum(sum(row[:rank]) for row, rank in zip(energies, found.ranks, strict=True)), rel=1e-12
    )
    assert found.kept == pytest.approx(tried(energies, units, budget), rel=1e-9)
    assert found.shortfall == 0.0


def test_greed_alone_would_miss_the_best() -> None:
    # The best ratio first takes 10 of 6 bytes and leaves no room for the other two of 9 each.
    assert allocate([[10.0], [9.0, 9.0]], [6, 5], budget=10).ranks == (0, 2)


@given(MATRICES, st.integers(0, 60))
def test_where_the_search_is_cut_short_the_shortfall_is_a_bound(
    matrices: list[tuple[list[float], int]], budget: int
) -> None:
    energies, units = [row for row, _ in matrices], [unit for _, unit in matrices]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budgets, "MOST_STATES", 0)
        found = allocate(energies, units, budget)
    assert found.kept <= tried(energies, units, budget) * (1 + 1e-9)
    assert tried(energies, units, budget) <= (found.kept + found.shortfall) * (1 + 1e-9)


def test_a_model_of_many_layers_is_solved_exactly_and_not_by_trying() -> None:
    """Two hundred matrices of three sizes with spectra that fall like a power: far beyond trying everything."""
    energies = [[(1 + at % 7) / (rank + 1) ** 1.5 for rank in range(256)] for at in range(224)]
    units = [(4096 + (4096, 11008, 14336)[at % 3]) * 4 for at in range(224)]
    found = allocate(energies, units, budget=100_000_000)
    spent = sum(unit * rank for unit, rank in zip(units, found.ranks, strict=True))
    assert 100_000_000 - min(units) < spent <= 100_000_000
    assert found.shortfall <= 1e-6 * found.kept


def test_room_for_everything_or_nothing() -> None:
    assert allocate([[3.0, 2.0], [1.0]], [4, 4], budget=12).ranks == (2, 1)
    assert allocate([[3.0, 2.0], [1.0]], [4, 4], budget=3).ranks == (0, 0)
    assert allocate([[]], [4], budget=8).ranks == (0,)
