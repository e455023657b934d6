"""Decay on attention that learns: for which products its laws hold, and for which they do not.

Heads that share their keys are one factorization, and the laws are the group's. Rotary queries and keys leave one scale
for each frequency free, and the laws are the frequencies'.
"""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import rankwise as rw
from tests.steer.descent import Loss, gaussian, imbalance, run

INPUTS = gaussian(24, 6, 12, seed=1)


def attention(key_heads: int, *, seed: int = 0, init: str = "drawn") -> rw.FactorizedAttention:
    torch.manual_seed(seed)
    return rw.FactorizedAttention(
        12,
        4,
        head_size=3,
        key_heads=key_heads,
        bias=False,
        init=init,  # pyright: ignore[reportArgumentType]
        draw=partial(nn.init.normal_, std=0.5),
        dtype=torch.float64,
    )


def imitation(model: nn.Module, teacher: nn.Module) -> Loss:
    """The mean squared distance from another attention's answers."""
    wanted = teacher(INPUTS).detach()
    return lambda: (model(INPUTS) - wanted).square().mean()


def distance(found: Tensor, wanted: Tensor) -> float:
    return ((found - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_weight_decay_damps_the_imbalance_of_groups_and_not_of_their_heads(key_heads: int) -> None:
    model = attention(key_heads)
    before = {name: (imbalance(each, group=1), imbalance(each)) for name, each in (("qk", model.qk), ("ov", model.ov))}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.1)
    run(optimizer, imitation(model, attention(key_heads, seed=9)), 120)
    share = math.exp(-2 * 0.1 * 0.05 * 120)
    for name, product in (("qk", model.qk), ("ov", model.ov)):
        groups, heads = before[name]
        assert distance(imbalance(product, group=1), share * groups) < 0.02
        if key_heads < 4:
            assert distance(imbalance(product), share * heads) > 0.2


@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_frobenius_decay_conserves_the_imbalance_of_groups_and_not_of_their_heads(key_heads: int) -> None:
    model = attention(key_heads)
    before = {name: (imbalance(each, group=1), imbalance(each)) for name, each in (("qk", model.qk), ("ov", model.ov))}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.1)
    rw.FrobeniusDecay(model).attach(optimizer)
    run(optimizer, imitation(model, attention(key_heads, seed=9)), 120)
    for name, product in (("qk", model.qk), ("ov", model.ov)):
        groups, heads = before[name]
        assert distance(imbalance(product, group=1), groups) < 0.05
        if key_heads < 4:
            assert distance(imbalance(product), heads) > 0.2


@pytest.mark.parametrize("key_heads", [4, 2])
def test_where_training_ends_groups_are_balanced_and_their_heads_are_not(key_heads: int) -> None:
    """There the half-sum is the nuclear norm of all heads of a group side by side."""
    model = attention(key_heads)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, weight_decay=0.1)
    run(optimizer, imitation(model, attention(key_heads, seed=9)), 300)
    for product in (model.qk.detach(), model.ov.detach()):
        assert rw.frobenius_penalty(product).sum() > 1
        assert rw.balance(product, group=1).relative.max() < 1e-6
        single = rw.balance(product)
        assert (single.relative_imbalance.min() > 0.2) == (key_heads < 4)
        assert (single.relative.min() > 0.01) == (key_heads < 4)


def rotary_model() -> nn.Module:
    """One layer of Llama with grouped keys, in float64, whose weights are large enough to be far from linear."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config).double()
    for name, parameter in model.named_parameters():
        if "self_attn" in name:
            nn.init.normal_(parameter, std=0.3)
    return model


def language(model: nn.Module) -> Loss:
    """Repeat the word that stood five places before: the distance between two words is all that tells."""
    words = torch.randint(16, (32, 5), generator=torch.Generator().manual_seed(4)).repeat(1, 3)
    return lambda: model(input_ids=words, labels=words).loss


@pytest.mark.slow
@pytest.mark.parametrize("charge", ["factors", "product"])
def test_rotary_pairs_obey_the_law_and_the_whole_imbalance_does_not(charge: str) -> None:
    model = rotary_model()
    assert rw.find(model).certify()
    qk, ov = rw.find(model).select(kind=("qk", "ov"))
    pairs = qk.attention.rotary.index()

    def measured() -> list[Tensor]:
        queries, values = qk.product(model).detach(), ov.product(model).detach()
        of_pairs, of_others = (
            rw.pair_balance(queries, each, group=1).imbalance for each in (pairs, rw.RotaryPairs("interleaved"))
        )
        return [of_pairs, imbalance(values, group=1), imbalance(queries, group=1), of_others]

    before = measured()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.03)
    if charge == "product":
        rw.FrobeniusDecay(rw.find(model).select(kind=("qk", "ov"))).attach(optimizer)
    run(optimizer, language(model), 300)
    share = math.exp(-2 * 0.03 * 0.05 * 300) if charge == "factors" else 1.0
    of_pairs, of_values, of_queries, of_others = (
        distance(after, share * start) for after, start in zip(measured(), before, strict=True)
    )
    assert of_pairs < 0.01
    # Values are not rotated: the whole law, as far as the steps are small.
    assert of_values < 0.06
    assert of_queries > 0.15
    assert of_others > 10 * of_pairs


def test_balanced_and_drawn_starts_are_the_same_function() -> None:
    """Spectral initialization of whole heads is a rebalancing: logits and outputs stay."""
    for key_heads in (4, 2):
        drawn, balanced = (attention(key_heads, seed=3, init=init) for init in ("drawn", "balanced"))
        for one, two in ((drawn.qk, balanced.qk), (drawn.ov, balanced.ov)):
            torch.testing.assert_close(two.dense(), one.dense(), rtol=0, atol=1e-12)
            assert (
                rw.balance(two.detach(), group=1).relative.max()
                < 1e-20
                < 0.01
                < rw.balance(one.detach(), group=1).relative.min()
            )
        queries, keys = INPUTS[:, None], INPUTS[:, None].mT
        logits = [each.qk.dense().flatten(0, 1) for each in (drawn, balanced)]
        torch.testing.assert_close(queries @ logits[1] @ keys, queries @ logits[0] @ keys, rtol=0, atol=1e-10)
        torch.testing.assert_close(balanced(INPUTS), drawn(INPUTS), rtol=0, atol=1e-10)


def test_rebalancing_attention_leaves_its_weights_and_outputs_and_takes_the_gap_from_what_decay_charges() -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(12, 4, batch_first=True).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    sites = rw.find(model).select(kind=("qk", "ov"))
    gap = sum(rw.balance(site.product(model).detach()).gap.sum() for site in sites)
    charged = sum(parameter.square().sum() / 2 for name, parameter in model.named_parameters() if "weight" in name)
    expected = model(INPUTS, INPUTS, INPUTS, average_attn_weights=False)
    record = rw.balance_(model)
    found = model(INPUTS, INPUTS, INPUTS, average_attn_weights=False)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-10)
    rest = sum(parameter.square().sum() / 2 for name, parameter in model.named_parameters() if "weight" in name)
    torch.testing.assert_close(charged - rest, gap, rtol=1e-9, atol=0)
    assert record.drop == pytest.approx(gap.item(), rel=1e-9)
