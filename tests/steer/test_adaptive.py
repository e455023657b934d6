"""Under AdamW Frobenius decay does not stay balanced by itself; with help it does, and learns more."""

from __future__ import annotations

import pytest

from tests.steer import adaptive


@pytest.mark.slow
@pytest.mark.parametrize("start", adaptive.STARTS)
def test_frobenius_decay_under_adamw_needs_its_balance_kept(start: str) -> None:
    found = {charge: adaptive.outcome(start, charge) for charge in adaptive.CHARGES}
    balanced_before = start == "spectral"
    assert all((one.before < 1e-6) == balanced_before for one in found.values())
    # Adam adds to the imbalance. Decay of the factors takes from it, Frobenius decay does not.
    assert found["none"].after > 0.01
    assert max(found["none"].after, found["factors"].after) < 0.15
    assert found["product"].after > 0.4
    assert found["product, and balance"].after < 0.005
    assert found["product, rebalanced"].after < 0.03
    kept = (found["product, and balance"].loss, found["product, rebalanced"].loss)
    assert max(kept) < found["product"].loss
