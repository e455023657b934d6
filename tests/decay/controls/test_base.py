"""When controls act, on which optimizer, and how they go on."""

from __future__ import annotations

import pytest
import torch

from rankwise.decay.controls.rank_cap import RankCap
from rankwise.decay.controls.rebalancing import Rebalancing
from rankwise.errors import UserError
from rankwise.layers.rebalance import balance_
from rankwise.product.balance import balance
from tests.decay import models


def test_it_acts_after_every_so_many_steps_and_remembers_how_many() -> None:
    calls: list[int] = []
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    control = Rebalancing(lambda: calls.append(len(calls))).attach(optimizer, every=3)
    for _ in range(7):
        optimizer.step()
    assert len(calls) == 2
    assert control.state_dict() == {"steps": 7}
    control.detach()
    optimizer.step()
    resumed = Rebalancing(lambda: calls.append(-1))
    resumed.load_state_dict({"steps": 7})
    resumed.attach(optimizer, every=3)
    optimizer.step()
    assert len(calls) == 2
    optimizer.step()
    assert calls[-1] == -1


def test_attaching_is_checked() -> None:
    model = models.chain(9, 3, 7)
    control = RankCap(model, rank=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for every in (0, 1.5, True):
        with pytest.raises(UserError, match="every must be a number of steps from 1 on"):
            control.attach(optimizer, every=every)
    with pytest.raises(UserError, match=r"the optimizer does not hold up.factors.0, up.factors.1"):
        control.attach(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]))
    control.attach(optimizer)
    with pytest.raises(UserError, match="attached already"):
        control.attach(optimizer)
    control.detach()
    with pytest.raises(UserError, match="is not attached"):
        control.detach()
    with pytest.raises(UserError, match="rebalance must be a function"):
        Rebalancing(None)


def test_attached_it_keeps_a_rank_in_a_training() -> None:
    model = models.chain(9, 3, 7)
    sites = models.products(model, "linear")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    RankCap(sites, rank=2).attach(optimizer)
    for seed in range(5):
        models.fill_gradients(model, seed=seed)
        optimizer.step()
        (site,) = sites
        assert torch.linalg.matrix_rank(site.product(model).dense().detach()) == 2


def test_rebalancing_a_live_model_keeps_its_function_and_moves_the_optimizers_memory() -> None:
    torch.manual_seed(0)
    model = torch.nn.Module()
    from rankwise.layers.linear import FactorizedLinear

    model.up = FactorizedLinear(9, 7, rank=3, dtype=torch.float64)
    factors = list(model.up.parameters())[:2]
    with torch.no_grad():
        factors[0] *= 5
    given = torch.randn(4, 9, dtype=torch.float64)
    before = model.up(given).detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    Rebalancing(lambda: balance_(model, optimizer=optimizer)).attach(optimizer, every=2)
    for _ in range(2):
        optimizer.zero_grad()
        model.up(given).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(model.up(given).detach(), before)
    assert float(balance(model.up.product.detach()).relative) < 1e-12
