"""A spectral start and Frobenius decay need each other: alone, Frobenius decay keeps the imbalance that it is given."""

from __future__ import annotations

import math

import pytest

import rankwise as rw
from tests.steer import pairing


@pytest.mark.slow
def test_frobenius_decay_helps_a_balanced_start_and_fails_an_unbalanced_one() -> None:
    found = pairing.run()
    # Balanced from the start: all near the best direction of this rank, Frobenius decay nearest.
    spectral = {charge: found["spectral", charge] for charge in ("none", "factors", "product")}
    assert spectral["product"].missed < spectral["factors"].missed < spectral["none"].missed < 0.02
    assert spectral["product"].missed < 0.004
    assert all(each.before < 1e-4 and each.after < 0.1 for each in spectral.values())
    # Otherwise decay of the factors balances them and arrives too; Frobenius decay is left behind, as no decay is.
    regular = {charge: found["regular", charge] for charge in ("none", "factors", "product")}
    assert regular["factors"].missed < 0.01
    assert min(regular["product"].missed, regular["none"].missed) > 0.03
    assert regular["product"].missed > 10 * spectral["product"].missed
    # At the rates of the theory: kept but for the squares of noisy steps, and damped as exp(-2 lambda t).
    assert 30 < regular["product"].before < 50
    assert regular["none"].after > 0.98 * regular["none"].before
    assert regular["product"].after > 0.85 * regular["product"].before
    time = pairing.RATE * pairing.STEPS
    damped = regular["factors"].before * math.exp(-2 * pairing.DECAY * time)
    assert regular["factors"].after == pytest.approx(damped, rel=0.15)
    agrees_with_the_simulation(found)


def agrees_with_the_simulation(found: dict[pairing.Arm, pairing.Outcome]) -> None:
    """The theory's own experiment, on plain tensors and with another target, misses as much in every cell."""
    theory = rw.theory.start_and_decay(
        size=pairing.SIZE, rank=pairing.RANK, rate=pairing.RATE, decay=pairing.DECAY, noise=1.0, steps=pairing.STEPS
    )
    kept = theory.imbalance.simulated / theory.begun
    for (start, charge), outcome in found.items():
        cell = (rw.theory.Start(start), rw.theory.Penalty(charge))
        assert outcome.missed == pytest.approx(theory.best - theory.reached(*cell), abs=0.02)
        if start == "regular":
            assert outcome.after / outcome.before == pytest.approx(kept[theory.cells.index(cell)].item(), abs=0.03)
