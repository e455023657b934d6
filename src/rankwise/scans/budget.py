"""Ranks for many matrices from one budget: the triplets that keep the most energy within a number of bytes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

# More partial solutions than this are not looked at: what greed found is then returned, with how far it may be off.
MOST_STATES = 50_000
# Differences of sums below this share of them are rounding.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Allocation:
    """Ranks within a budget.

    Arguments:
        ranks: one for each matrix.
        kept: the energy that they keep.
        shortfall: the best ranks keep at most so much more; 0 where these are the best.
    """

    ranks: tuple[int, ...]
    kept: float = field(kw_only=True)
    shortfall: float = field(kw_only=True)


def allocate(energies: Sequence[Sequence[float]], units: Sequence[int], budget: int) -> Allocation:
    """The ranks `r_i` with `sum_i r_i unit_i <= budget` that keep the most energy, `sum_i sum_{j < r_i} energy_ij`.

    Since the energies of a matrix fall, taking the triplets of most energy for each byte is the best way to spend all
    of them; what is left over when the next one no longer fits is where greed can be wrong. The price at that point,
    the energy for a byte, bounds every solution from above (Lagrange), and says of each triplet how much a solution
    with or without it can keep at most: only those for which that is more than greed found are left to be searched.

    Arguments:
        energies: for each matrix its squared singular values, largest first.
        units: for each matrix the bytes of one triplet.
        budget: the bytes in all.

    >>> allocate([[9.0, 1.0], [4.0, 3.0]], [2, 1], budget=3)
    Allocation(ranks=(1, 1), kept=13.0, shortfall=0.0)
    """
    ranks, price = _greedy(energies, units, budget)
    kept = _kept(energies, ranks)
    # What each rank keeps beyond its price: no solution keeps more than the best of each and the price of the budget.
    margins = [_margins(row, price * unit) for row, unit in zip(energies, units, strict=True)]
    bound = price * budget + sum(map(max, margins))
    gap = bound - kept
    if gap > ROUNDING * bound:
        found = _search(energies, units, budget, margins=margins, price=price, gap=gap, kept=kept)
        if found is None:
            return Allocation(tuple(ranks), kept=kept, shortfall=gap)
        ranks = found if found else ranks
    return Allocation(tuple(ranks), kept=_kept(energies, ranks), shortfall=0.0)


def _greedy(energies: Sequence[Sequence[float]], units: Sequence[int], budget: int) -> tuple[list[int], float]:
    """The triplets of most energy for each byte as long as they fit; and the price where the first one did not."""
    ranks, price = [0] * len(units), 0.0
    queue = [(-row[0] / unit, at) for at, (row, unit) in enumerate(zip(energies, units, strict=True)) if row]
    heapq.heapify(queue)
    while queue:
        ratio, at = heapq.heappop(queue)
        if units[at] > budget:
            price = max(price, -ratio)
            continue
        budget -= units[at]
        ranks[at] += 1
        if ranks[at] < len(energies[at]):
            heapq.heappush(queue, (-energies[at][ranks[at]] / units[at], at))
    return ranks, price


@dataclass(frozen=True)
class _State:
    """Ranks for the first few matrices: what they cost and keep, the last of them, and those before."""

    cost: int
    kept: float
    rank: int = 0
    before: _State | None = None


def _search(
    energies: Sequence[Sequence[float]],
    units: Sequence[int],
    budget: int,
    *,
    margins: Sequence[Sequence[float]],
    price: float,
    gap: float,
    kept: float,
) -> list[int] | None:
    """The best ranks if they keep more than `kept`, an empty list if none do, None where there are too many to look at.

    A rank whose margin is `gap` or more below the best of its matrix cannot be part of a better solution, nor can a
    partial one that keeps less than another of the same cost, or whose own bound is not above `kept`.
    """
    states = [_State(0, 0.0)]
    ahead = sum(map(max, margins))
    for row, unit, margin in zip(energies, units, margins, strict=True):
        best = max(margin)
        ahead -= best
        candidates = [rank for rank, each in enumerate(margin) if best - each < gap]
        totals = [0.0, *accumulate(row)]
        grown = sorted(
            (
                _State(state.cost + rank * unit, state.kept + totals[rank], rank, state)
                for state in states
                for rank in candidates
                if state.cost + rank * unit <= budget
            ),
            key=lambda state: (state.cost, -state.kept),
        )
        states, most = [], -1.0
        for state in grown:
            reach = state.kept + price * (budget - state.cost) + ahead
            if state.kept > most and reach > kept * (1 + ROUNDING):
                states.append(state)
                most = state.kept
        if len(states) > MOST_STATES:
            return None
    if not states or states[-1].kept <= kept:
        return []
    ranks, state = [], states[-1]
    while state.before is not None:
        ranks.append(state.rank)
        state = state.before
    return ranks[::-1]


def _margins(row: Sequence[float], cost: float) -> list[float]:
    return [0.0, *accumulate(energy - cost for energy in row)]


def _kept(energies: Sequence[Sequence[float]], ranks: Sequence[int]) -> float:
    return sum(sum(row[:rank]) for row, rank in zip(energies, ranks, strict=True))
