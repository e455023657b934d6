"""An optimizer's own weight decay: how it is applied, and taking parameters out of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rankwise.decay.ordinary import chosen_manner, manner_of, ordinary_decay, remove
from rankwise.errors import UserError


def parameters(count: int = 3) -> list[nn.Parameter]:
    return [nn.Parameter(torch.full((2, 2), float(place + 1))) for place in range(count)]


KINDS = [
    getattr(torch.optim, name)
    for name in (
        *("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "ASGD", "Adafactor"),
        *("Muon", "Rprop"),
    )
    if hasattr(torch.optim, name)
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_manner_is_what_the_optimizer_does(kind: type[torch.optim.Optimizer]) -> None:
    """A step of its own takes `lr * weight_decay` of the weights off, also where the gradient is enormous or none."""
    if kind is torch.optim.Rprop:
        assert manner_of(kind([nn.Parameter(torch.ones(1))])) is None
        return
    moved = []
    for weight_decay in (0.0, 0.5):
        one = nn.Parameter(torch.full((2, 2), 3.0, dtype=torch.float64))
        one.grad = torch.full_like(one, 1e4)
        optimizer = kind([one], lr=0.01, weight_decay=weight_decay)
        for _ in range(2):
            before = one.detach().clone()
            optimizer.step()
        moved.append(((before - one.detach()) / before).mean().item())
    # Adam's relatives divide by the size of the gradient, where a coupled decay drowns; SGD adds it up as it is.
    additive = kind in (torch.optim.SGD, torch.optim.ASGD)
    own = moved[1] - moved[0] == pytest.approx(0.01 * 0.5, rel=0.05)
    assert manner_of(optimizer) == ("decoupled" if own and not additive else "coupled")


def test_flags_of_the_groups_decide() -> None:
    for flag, manner in ((True, "decoupled"), (False, "coupled")):
        assert manner_of(torch.optim.Adam(parameters(), decoupled_weight_decay=flag)) == manner
    mixed = torch.optim.Adam([{"params": [one]} for one in parameters(2)])
    mixed.param_groups[0]["decoupled_weight_decay"] = True
    assert manner_of(mixed) == "coupled"  # Adam's own, where its groups disagree

    class Other(torch.optim.Optimizer):
        def step(self, closure: object = None) -> None: ...

    with pytest.raises(UserError, match="how Other decays weights is not known here"):
        chosen_manner(Other(parameters(), {"lr": 0.1}), None)
    assert chosen_manner(Other(parameters(), {"lr": 0.1}), True) == "decoupled"


def decays(optimizer: torch.optim.Optimizer, found: list[nn.Parameter]) -> list[float]:
    return list(ordinary_decay(optimizer, found).values())


def test_groups_are_split_only_where_they_hold_others() -> None:
    one, two, three = found = parameters()
    optimizer = torch.optim.AdamW(
        [{"params": [one, two], "weight_decay": 0.1, "lr": 0.3}, {"params": [three], "weight_decay": 0.2}]
    )
    removed = remove(optimizer, [two, three])
    assert len(optimizer.param_groups) == 3
    assert optimizer.param_groups[2]["lr"] == 0.3
    assert [ordinary_decay(optimizer, found)[each] for each in found] == [0.1, 0.0, 0.0]
    assert sorted(value for value in removed.values.values()) == [0.1, 0.2]
    removed.restore()
    assert [ordinary_decay(optimizer, found)[each] for each in found] == [0.1, 0.1, 0.2]


def test_the_optimizers_memory_stays_with_its_parameters() -> None:
    one, two = found = parameters(2)
    optimizer = torch.optim.SGD(found, lr=0.1, momentum=0.9, weight_decay=0.1)
    for each in found:
        each.grad = torch.ones_like(each)
    optimizer.step()
    buffers = {each: optimizer.state[each]["momentum_buffer"] for each in found}
    remove(optimizer, [two])
    optimizer.step()
    assert all(optimizer.state[each]["momentum_buffer"] is buffers[each] for each in found)
    assert one in optimizer.param_groups[0]["params"]


def test_named_parameters_keep_their_names() -> None:
    named = [(f"at.{place}", each) for place, each in enumerate(parameters())]
    optimizer = torch.optim.AdamW(named, weight_decay=0.1)
    remove(optimizer, [named[1][1]])
    assert [group["param_names"] for group in optimizer.param_groups] == [["at.0", "at.2"], ["at.1"]]
    optimizer.load_state_dict(optimizer.state_dict())


def test_a_whole_group_may_leave_under_a_scheduler_and_a_part_may_not() -> None:
    one, two, three = parameters()
    optimizer = torch.optim.AdamW([{"params": [one, two]}, {"params": [three]}], weight_decay=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    remove(optimizer, [three])
    with pytest.raises(UserError, match="a group has to be split: attach the decay before the scheduler"):
        remove(optimizer, [two])
    assert [float(value) for value in decays(optimizer, [one, two, three])] == [0.1, 0.1, 0.0]
