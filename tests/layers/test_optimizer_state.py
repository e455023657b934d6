"""An optimizer's memory follows a move exactly where it can, and is dropped, and said to be, where it cannot."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import rankwise as rw
from rankwise.layers.linear import FactorizedLinear
from rankwise.layers.optimizer_state import summary
from rankwise.layers.rebalance import balance_
from rankwise.layers.rebalanced import Rebalanced
from rankwise.sites.certify.tiny import tiny_models

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0, momentum=0.9)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """With a memory of nothing, so that its moments are the last gradient and its square."""
    return torch.optim.AdamW(parameters, lr=0.0, betas=(0.0, 0.0), amsgrad=True)


def model_of(kind: str) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A model that something is to be gained of, and its loss."""
    torch.manual_seed(0)
    if kind == "layer":
        model = nn.Sequential(FactorizedLinear(6, 8, rank=3, init=nn.init.kaiming_normal_)).double()
        stream = torch.randn(5, 6, dtype=torch.float64)
        return model, lambda: model(stream).pow(3).mean()
    model = next(iter(tiny_models(kind)))[1].double().eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    words = torch.randint(0, 90, (2, 7), generator=generator)
    return model, lambda: model(words, use_cache=False).last_hidden_state.pow(3).mean()


def stepped(kind: str, make: Make) -> tuple[nn.Module, Callable[[], Tensor], torch.optim.Optimizer]:
    """A model whose optimizer remembers exactly the gradient at its weights, which `.grad` still holds."""
    model, loss = model_of(kind)
    optimizer = make(list(model.parameters()))
    loss().backward()
    optimizer.step()
    return model, loss, optimizer


def moved_parameters(model: nn.Module, record: Rebalanced) -> set[nn.Parameter]:
    sites = rw.find(model)
    names = {name for each in record.moved for name in sites[each.site].parameters}
    return {model.get_parameter(name) for name in names}


def assert_equal(found: Tensor, expected: Tensor, scale: float) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6 * scale)


@pytest.mark.parametrize("kind", ["layer", "gpt2", "llama", "gpt_neox"])
def test_momentum_and_gradients_are_those_of_the_moved_weights(kind: str) -> None:
    """The function stays, so the gradient at the new weights is known: momentum and `.grad` must have become it."""
    model, loss, optimizer = stepped(kind, sgd)
    record = balance_(model, optimizer=optimizer)
    assert {each.state for each in record.moved} == {"moved"}
    carried = {p: (p.grad.clone(), optimizer.state[p]["momentum_buffer"].clone()) for p in model.parameters()}
    optimizer.zero_grad()
    loss().backward()
    scale = max(p.grad.abs().max().item() for p in model.parameters())
    for parameter, (gradient, momentum) in carried.items():
        assert_equal(gradient, parameter.grad, scale)
        assert_equal(momentum, parameter.grad, scale)


def test_squares_follow_rotary_scales_exactly_and_reset_where_a_matrix_was_needed() -> None:
    model, loss, optimizer = stepped("llama", adam)
    record = balance_(model, optimizer=optimizer)
    states = {each.site.rpartition(".")[2]: each.state for each in record.moved}
    assert states == {"qk": "moved", "ov": "reset"}
    optimizer_state = dict(optimizer.state)
    optimizer.zero_grad()
    loss().backward()
    for name, parameter in model.named_parameters():
        if "v_proj" in name or "o_proj" in name:
            assert parameter not in optimizer_state
            continue
        scale = parameter.grad.abs().max().item()
        state = optimizer_state[parameter]
        assert_equal(state["exp_avg"], parameter.grad, scale)
        for squares in ("exp_avg_sq", "max_exp_avg_sq"):
            assert_equal(state[squares], parameter.grad.square(), scale**2)
    assert optimizer_state[parameter]["step"] == 1
    optimizer.step()  # what was reset starts anew
    assert all(len(optimizer.state[each]) for each in model.parameters() if each.requires_grad)


def test_what_shares_a_parameter_shares_its_fate() -> None:
    """In GPT-NeoX one tensor holds queries, keys and values: the values' matrix resets the queries' memory with it."""
    model, _, optimizer = stepped("gpt_neox", adam)
    record = balance_(model, optimizer=optimizer)
    assert {each.state for each in record.moved} == {"reset"}
    assert {each.gauge for each in record.moved} == {"a scale per pair", "a matrix"}
    gone = {p for p in model.parameters() if p not in optimizer.state}
    assert gone >= moved_parameters(model, record)


def test_squares_can_be_estimated() -> None:
    model, _, optimizer = stepped("layer", adam)
    left = model[0].factors[0]
    before = optimizer.state[left]["exp_avg_sq"].clone()
    factor = left.detach().clone()
    record = balance_(model, optimizer=optimizer, second_moments="estimate")
    assert [each.state for each in record.moved] == ["estimated"]
    # The move as the weights tell it: `A G = A'` in the least-squares sense is exact for a thin `A`.
    matrix = torch.linalg.lstsq(factor, left.detach()).solution
    expected = before @ torch.linalg.inv(matrix).mT.square()
    torch.testing.assert_close(optimizer.state[left]["exp_avg_sq"], expected, rtol=1e-7, atol=0)
    assert (optimizer.state[left]["exp_avg_sq"] > 0).all()


@pytest.mark.parametrize(
    ("make", "state"),
    [
        (lambda p: torch.optim.RMSprop(p, lr=0.0, momentum=0.9), "reset"),
        (lambda p: torch.optim.Adadelta(p, lr=0.0), "reset"),
        (lambda p: torch.optim.Adagrad(p, lr=0.0), "reset"),
        (lambda p: torch.optim.NAdam(p, lr=0.0), "reset"),
        (lambda p: torch.optim.Muon([each for each in p if each.ndim == 2], lr=0.0), "moved"),
        (lambda p: torch.optim.Adafactor(p, lr=0.0), "reset"),
        (lambda p: torch.optim.SGD(p, lr=0.0), "no state"),
    ],
    ids=["RMSprop", "Adadelta", "Adagrad", "NAdam", "Muon", "Adafactor", "SGD"],
)
def test_every_optimizer_is_moved_or_said_to_be_reset(make: Make, state: str) -> None:
    model, loss, optimizer = stepped("layer", make)
    record = balance_(model, optimizer=optimizer)
    assert [each.state for each in record.moved] == [state]
    if state == "reset":
        assert not any(factor in optimizer.state for factor in model[0].factors)
    loss().backward()
    optimizer.step()


def test_a_history_of_all_parameters_is_dropped_as_a_whole() -> None:
    model, loss = model_of("layer")
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)
    record = balance_(model, optimizer=optimizer)
    assert [each.state for each in record.moved] == ["reset"]
    assert not optimizer.state
    optimizer.step(closure)


def test_fused_and_foreach_go_on() -> None:
    for way in ({"fused": True}, {"foreach": True}):
        model, loss = model_of("layer")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **way)
        for _ in range(2):
            loss().backward()
            optimizer.step()
        balance_(model, optimizer=optimizer)
        loss().backward()
        optimizer.step()
        assert optimizer.state[model[0].factors[0]]["step"] == 1
        assert optimizer.state[model[0].bias]["step"] == 3


def test_without_an_optimizer_nothing_is_said_of_one() -> None:
    model, _ = model_of("layer")
    assert [each.state for each in balance_(model).moved] == [None]


def test_the_worst_of_several_parameters_is_said() -> None:
    assert summary(["moved", "reset", "no state"]) == "reset"
    assert summary([]) == "no state"
