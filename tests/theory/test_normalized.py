"""Before a normalization layer: Claim 3.1 by its slope, and where norms settle."""

from __future__ import annotations

import pytest
import torch

from rankwise.errors import UserError
from rankwise.theory import (
    MatrixLoss,
    Penalty,
    equilibrium_step,
    normalized_step,
    random_factors,
)


@pytest.mark.parametrize("penalty", Penalty)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_error_of_claim_3_1_over_the_rate_falls_linearly(penalty, seed) -> None:
    factors = random_factors((7, 5), rank=3, scale=1.0, seed=seed)
    decay = 0.0 if penalty is Penalty.NONE else 0.05
    loss = MatrixLoss.rugged((7, 5), seed=seed)
    found = normalized_step(loss, *factors, decay=decay, penalty=penalty, rates=(1e-2, 1e-3, 1e-4, 1e-5))
    assert found.slope.error < 0.02
    assert found.velocity.relative_error < 1e-3
    assert found.effective == pytest.approx(float((factors[0] @ factors[1]).square().sum()) ** -1)
    # Weight decay leaves the direction alone at first order; Frobenius decay does not, and its term is needed.
    assert found.bare_slope.error < 0.03
    assert (float(found.tangential.norm()) > 1e-3) == (penalty is Penalty.PRODUCT)


def test_frobenius_decay_leaves_the_direction_where_all_values_are_equal() -> None:
    frame = torch.linalg.qr(torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    found = normalized_step(
        MatrixLoss.rugged((6, 6), seed=0), 2 * frame, 2 * frame.mT, decay=0.1, penalty=Penalty.PRODUCT
    )
    assert float(found.tangential.norm()) < 1e-12


def test_norms_settle_where_noise_and_decay_balance() -> None:
    dense = equilibrium_step((12, 8), decay=0.05, rates=[0.1, 0.2])
    assert dense.norm.relative_error < 0.01
    assert dense.step.relative_error < 0.02
    assert (dense.step.simulated[1] / dense.step.simulated[0]).item() == pytest.approx(2**0.5, rel=0.02)


@pytest.mark.slow
def test_the_effective_step_of_factors_does_not_depend_on_the_rate() -> None:
    found = equilibrium_step((12, 8), decay=0.05, rates=[0.05, 0.1, 0.2], rank=3)
    assert found.step.relative_error < 0.03
    assert found.factors.relative_error < 0.03
    assert bool((found.stable_ranks < 1.01).all())
    assert float(found.step.simulated.max() / found.step.simulated.min()) < 1.03


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: normalized_step(MatrixLoss.rugged((2, 2), seed=0), torch.eye(2), torch.eye(2), rates=[0.1]),
            "two or more",
        ),
        (
            lambda: normalized_step(
                MatrixLoss.rugged((2, 2), seed=0), torch.eye(2), torch.eye(2), penalty=Penalty.PRODUCT
            ),
            "a decay of 0 charges nothing",
        ),
        (lambda: equilibrium_step((4, 4), decay=0.0, rates=[0.1]), "positive decay"),
        (lambda: equilibrium_step((4, 4), decay=1.0, rates=[0.5]), "is above 0.1"),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
