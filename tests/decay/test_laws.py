"""What the decays do to singular values in a training; the laws of balance are in tests/steer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rankwise.decay.frobenius import FrobeniusDecay
from rankwise.decay.nuclear import NuclearDecay
from tests.decay import models

# No value is close to a threshold of 1, where descent takes forever.
SMALL = torch.tensor([3.0, 2.4, 1.8, 1.4, 0.6, 0.3], dtype=torch.float64)


def denoised(decay: str, goal: Tensor, *, depth: int = 2, steps: int = 600, rate: float = 0.1) -> Tensor:
    """The singular values at which `|W - Y|^2 / 2` and a decay of 1 on the factors of `W` settle."""
    generator = torch.Generator().manual_seed(0)
    shape = (len(goal), len(goal))
    start = [0.3 * torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(depth)]
    model = models.Tree({f"up.factors.{place}": each for place, each in enumerate(start)})
    factors = list(model.parameters())
    optimizer = torch.optim.SGD(factors, lr=rate, weight_decay=1.0 if decay == "factors" else 0.0)
    kinds = {"frobenius": FrobeniusDecay, "nuclear": NuclearDecay}
    if decay in kinds:
        kinds[decay](models.products(model, "linear"), coefficient=1.0).attach(optimizer)
    for _ in range(steps):
        optimizer.zero_grad()
        ((torch.linalg.multi_dot(factors) - torch.diag(goal)).square().sum() / 2).backward()
        optimizer.step()
    return torch.linalg.svdvals(torch.linalg.multi_dot(factors).detach())


SETTLED = {
    "frobenius": lambda goal: goal / 2,
    "factors": lambda goal: (goal - 1).clamp_min(0),
    "nuclear": lambda goal: (goal - 1).clamp_min(0),
}


@pytest.mark.parametrize("decay", ["frobenius", "factors", pytest.param("nuclear", marks=pytest.mark.slow)])
def test_singular_values_settle_where_the_theory_says(decay: str) -> None:
    """In proportion under Frobenius decay; soft-thresholded under decay on two factors, and under nuclear decay."""
    torch.testing.assert_close(denoised(decay, SMALL), SETTLED[decay](SMALL), rtol=0, atol=1e-3)


@pytest.mark.slow
def test_nuclear_decay_of_a_chain_has_the_threshold_of_two_factors_where_decay_on_three_has_another() -> None:
    torch.testing.assert_close(
        denoised("nuclear", SMALL, depth=3, steps=1000, rate=0.05), SETTLED["nuclear"](SMALL), rtol=0, atol=1e-3
    )
    found = denoised("factors", SMALL, depth=3, steps=2000, rate=0.05)
    assert (found[3:] < 1e-3).all()  # 1.4 is below the threshold of that penalty, and above 1
    torch.testing.assert_close(found[:2] + found[:2] ** (-1 / 3), SMALL[:2], rtol=0, atol=1e-3)


def test_discrete_decay_moves_the_imbalance_by_exactly_the_second_order_term() -> None:
    """`D' = D + eta^2 (F_A^T F_A - F_B F_B^T)` for steps `eta F` along the gauge-invariant gradient."""
    model = models.chain(8, 3, 6)
    one, two = (each.detach().clone() for each in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    FrobeniusDecay(models.products(model, "linear"), coefficient=0.5).attach(optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    after = [each.detach() for each in model.parameters()]
    moves = one @ (two @ two.mT), (one.mT @ one) @ two
    wanted = one.mT @ one - two @ two.mT + 0.05**2 * (moves[0].mT @ moves[0] - moves[1] @ moves[1].mT)
    torch.testing.assert_close(after[0].mT @ after[0] - after[1] @ after[1].mT, wanted, rtol=1e-11, atol=1e-11)


def test_the_pull_on_balanced_values() -> None:
    """`s` falls at rate `2 lambda s^2` under Frobenius decay, `2 lambda s` under nuclear decay and decay on factors."""
    values = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64)
    rates = {"frobenius": 2 * values**2, "nuclear": 2 * values}
    for name, kind in (("frobenius", FrobeniusDecay), ("nuclear", NuclearDecay)):
        root = torch.diag(values.sqrt())
        model = models.Tree({"up.factors.0": root.clone(), "up.factors.1": root.clone()})
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        kind(models.products(model, "linear"), coefficient=1.0).attach(optimizer)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        one, two = (each.detach() for each in model.parameters())
        fallen = (values - (one @ two).diagonal()) / 1e-6
        torch.testing.assert_close(fallen, rates[name], rtol=1e-4, atol=1e-5)
