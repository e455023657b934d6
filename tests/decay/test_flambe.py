"""FLAMBe is LAMB with the Frobenius term where its weight decay stands: inside the update that the ratio scales."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from rankwise.decay.flambe import FLAMBe
from rankwise.decay.frobenius import FrobeniusDecay
from rankwise.decay.lamb import Lamb
from rankwise.errors import UserError
from tests.decay import models
from tests.decay.test_frobenius import half_square

RATE = 0.01


def by_hand(model: nn.Module, sites, strength: dict[str, float], *, steps: int) -> dict[str, torch.Tensor]:
    """One tensor after the other, with the dense product's gradient by autograd."""
    means = {name: torch.zeros_like(each) for name, each in model.named_parameters()}
    squares = copy.deepcopy(means)
    for step in range(1, steps + 1):
        models.fill_gradients(model, seed=step)
        found = models.dense_gradients(model, sites, half_square)
        moves = {}
        for name, parameter in model.named_parameters():
            gradient, weight = parameter.grad, parameter.detach()
            means[name] = 0.9 * means[name] + 0.1 * gradient
            squares[name] = 0.999 * squares[name] + 0.001 * gradient**2
            update = means[name] / (1 - 0.9**step) / ((squares[name] / (1 - 0.999**step)).sqrt() + 1e-6)
            pull = found[name] if bool(found[name].any()) else weight
            if name.endswith("c_attn.weight"):
                pull = found[name].clone()
                pull[:, 30:] = weight[:, 30:]  # values are no part of these products
            update = update + strength[name] * pull
            ratio = weight.norm() / update.norm() if strength[name] else 1.0
            moves[name] = RATE * ratio * update
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= moves[name]
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def run(model: nn.Module, optimizer: torch.optim.Optimizer, *, steps: int) -> dict[str, torch.Tensor]:
    for step in range(1, steps + 1):
        models.fill_gradients(model, seed=step)
        optimizer.step()
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def groups(model: nn.Module) -> tuple[list[dict], dict[str, float]]:
    """Layers decay unequally, and vectors not at all: products of equal shapes have coefficients of their own."""
    strength = {
        name: 0.0 if each.ndim == 1 else 0.02 if name.startswith("h.0") else 0.05
        for name, each in model.named_parameters()
    }
    named = dict(model.named_parameters())
    found = [
        {"params": [named[name] for name in strength if strength[name] == value], "weight_decay": value}
        for value in sorted(set(strength.values()))
    ]
    return found, strength


def test_it_is_lamb_with_the_frobenius_term_inside_the_trust_ratio() -> None:
    model, other = models.gpt2(), models.gpt2()
    given, strength = groups(model)
    found = run(model, FLAMBe(given, models.products(model, "qk"), RATE), steps=3)
    expected = by_hand(other, models.products(other, "qk"), strength, steps=3)
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-7, atol=1e-9, msg=name)


def test_a_decay_attached_to_lamb_is_another_method() -> None:
    """Outside the trust ratio: the difference is the point of the name."""
    ended = []
    for inside in (True, False):
        model = models.llama()
        sites = models.products(model, ("qk", "ov"))
        if inside:
            optimizer = FLAMBe(model.parameters(), sites, RATE, weight_decay=0.1)
        else:
            optimizer = Lamb(model.parameters(), RATE, weight_decay=0.1)
            FrobeniusDecay(sites, decoupled=True).attach(optimizer)
        ended.append(run(model, optimizer, steps=1)["layers.0.self_attn.q_proj.weight"])
    assert (ended[0] - ended[1]).norm() > 1e-3 * ended[0].norm()


def test_its_state_goes_on_and_copies_decay_their_own_parameters() -> None:
    model = models.llama()
    optimizer = FLAMBe(model.parameters(), models.products(model, "qk"), RATE, weight_decay=0.1)
    run(model, optimizer, steps=2)
    other, copied = copy.deepcopy((model, optimizer))
    resumed = models.llama()
    resumed.load_state_dict(model.state_dict())
    loaded = FLAMBe(resumed.parameters(), models.products(resumed, "qk"), 0.5, weight_decay=0.7)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    expected = run(model, optimizer, steps=2)
    for found in (run(other, copied, steps=2), run(resumed, loaded, steps=2)):
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=0, msg=name)


def test_all_factors_must_be_the_optimizers() -> None:
    model = models.llama()
    with pytest.raises(UserError, match=r"was not given layers.0.self_attn.q_proj.weight.*, which the products lie in"):
        FLAMBe([model.embed_tokens.weight], models.products(model, "qk"))
