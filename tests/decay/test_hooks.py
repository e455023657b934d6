"""Once in every step: hooks, wrappers, scalers, and finding a parameter's group."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rankwise.decay.hooks import Groups, Scaling, StepHooks, unwrapped
from rankwise.errors import UserError


def optimizer() -> torch.optim.SGD:
    return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)


def test_hooks_run_before_and_after_until_removed() -> None:
    inner, order = optimizer(), []
    hooks = StepHooks(inner, lambda: order.append("before"), lambda: order.append("after"))
    inner.step()
    inner.step(lambda: order.append("closure"))
    assert order == ["before", "after", "closure", "before", "after"]
    hooks.remove()
    inner.step()
    assert len(order) == 5


def test_hooks_do_not_record_gradients_and_closures_do() -> None:
    inner, seen = optimizer(), []
    StepHooks(inner, lambda: seen.append(torch.is_grad_enabled()), lambda: None)
    inner.step(lambda: seen.append(torch.is_grad_enabled()))
    assert seen == [True, False]


def test_wrappers_are_taken_off() -> None:
    inner = optimizer()

    class Wrapper:
        def __init__(self, optimizer: object) -> None:
            self.optimizer = optimizer

    accelerate = pytest.importorskip("accelerate")
    assert unwrapped(Wrapper(inner)) is inner
    assert unwrapped(accelerate.Accelerator(cpu=True).prepare(inner)) is inner
    for wrong in (Wrapper(3), None, "adam"):
        with pytest.raises(UserError, match="expected a torch optimizer, got"):
            unwrapped(wrong)


def test_scaling_is_read_from_the_optimizer_and_never_waited_for() -> None:
    inner = optimizer()
    device = torch.device("cpu")
    assert Scaling.of(inner).kept(device) is None
    assert Scaling.of(inner).lifted(device) is None
    inner.grad_scale, inner.found_inf = torch.tensor(8.0), torch.tensor(0.0)
    assert Scaling.of(inner).kept(device) == 1
    assert Scaling.of(inner).lifted(device) == 8
    assert Scaling(found_inf=torch.tensor(2.0)).kept(device) == 0


def test_groups_are_found_by_identity_and_followed() -> None:
    inner = optimizer()
    one, two = inner.param_groups[0]["params"][0], nn.Parameter(torch.ones(2))
    groups = Groups(inner)
    assert groups.refreshed()
    assert not groups.refreshed()
    assert one in groups
    assert two not in groups
    assert groups.get(two) is None
    inner.add_param_group({"params": [two], "lr": 0.5})
    assert groups.refreshed()
    assert groups[two]["lr"] == 0.5
    inner.load_state_dict(inner.state_dict())
    assert groups.refreshed()
    assert groups[one] is inner.param_groups[0]
