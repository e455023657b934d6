"""Attention at a head size of choice: the formula, the certificates, the three starts, and the cut of given weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rankwise as rw
from rankwise.errors import UserError
from rankwise.layers.attention import FactorizedAttention
from rankwise.layers.head_weights import HeadWeights
from rankwise.product.balance import balance
from tests.layers.draws import generator, matrix

# Every size differs from every other, where it can: equal sizes hide transposes.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"heads": 4, "head_size": 5},
    "no bias": {"heads": 4, "head_size": 5, "bias": False},
    "grouped": {"heads": 6, "head_size": 5, "value_size": 7, "key_heads": 2},
    "multi-query": {"heads": 3, "head_size": 5, "key_heads": 1},
    "causal": {"heads": 4, "head_size": 3, "causal": True},
    "cross": {"heads": 3, "head_size": 4, "value_size": 2, "key_width": 20, "value_width": 17},
    "wide heads": {"heads": 2, "head_size": 30, "value_size": 40},
    "deep": {"heads": 4, "head_size": 5, "value_size": 3, "depth": 1},
    "deep and grouped": {"heads": 6, "head_size": 5, "value_size": 7, "key_heads": 2, "depth": 1},
    "deep and cross": {"heads": 3, "head_size": 4, "key_width": 20, "value_width": 17, "depth": 1},
}


def made(name: str, **changes: Any) -> FactorizedAttention:
    torch.manual_seed(0)
    layer = FactorizedAttention(24, **{**VARIANTS[name], **changes}, dtype=torch.float64).eval()
    for name, parameter in layer.named_parameters():
        if parameter.ndim == 1 or name.endswith("inner"):
            nn.init.normal_(parameter)
    return layer


def streams(layer: FactorizedAttention, queries: int = 6, keys: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    widths = ((queries, layer.width), (keys, layer.key_width), (keys, layer.value_width))
    one, two, three = (
        torch.randn(2, *size, generator=generator(at), dtype=torch.float64) for at, size in enumerate(widths)
    )
    return one, two, three


def by_hand(
    layer: FactorizedAttention, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> Tensor:
    """The formula head by head, with loops."""
    members = layer.heads // layer.key_heads
    total = torch.zeros(*query.shape[:-1], layer.width, dtype=query.dtype)
    for head in range(layer.heads):
        rows = slice(head * layer.head_size, (head + 1) * layer.head_size)
        shared = slice(head // members * layer.head_size, (head // members + 1) * layer.head_size)
        values = slice(head // members * layer.value_size, (head // members + 1) * layer.value_size)
        out = slice(head * layer.value_size, (head + 1) * layer.value_size)
        keys, seen = layer.key(key)[..., shared], layer.value(value)[..., values]
        if layer.depth:
            keys, seen = keys @ layer.query_key_inner[shared].mT, seen @ layer.output_value_inner[values].mT
        logits = layer.scale * layer.query(query)[..., rows] @ keys.mT
        if layer.causal:
            logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), float("-inf"))
        if mask is not None:
            logits = logits.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else logits + mask
        total = total + logits.softmax(-1) @ seen @ layer.output.weight[:, out].mT
    return total if layer.output.bias is None else total + layer.output.bias


@pytest.mark.parametrize("name", VARIANTS)
def test_the_formula(name: str) -> None:
    layer = made(name)
    query, key, value = streams(layer)
    torch.testing.assert_close(layer(query, key, value), by_hand(layer, query, key, value))
    assert layer.scale == layer.head_size**-0.5
    allowed = torch.rand(6, 6, generator=generator(9)) > 0.4
    allowed |= torch.eye(6, dtype=torch.bool)
    for mask in (allowed, torch.randn(6, 6, generator=generator(9), dtype=torch.float64)):
        torch.testing.assert_close(layer(query, key, value, mask=mask), by_hand(layer, query, key, value, mask))


def test_keys_and_values_default_to_the_stream_before_them() -> None:
    layer = made("plain")
    query, key, _ = streams(layer, keys=4)
    torch.testing.assert_close(layer(query), layer(query, query, query))
    torch.testing.assert_close(layer(query, key), layer(query, key, key))


@pytest.mark.parametrize("name", VARIANTS)
def test_its_products_are_certified_sites(name: str) -> None:
    layer = made(name)
    model = nn.ModuleDict({"layers": nn.ModuleList([layer])})
    sites = rw.find(model)
    assert sites.names == ("layers.0.qk", "layers.0.ov")
    assert not sites.unread
    for site, product in zip(sites, (layer.qk, layer.ov), strict=True):
        torch.testing.assert_close(site.product(model).dense(), product.dense().flatten(0, 1).reshape(site.shape))
    certificates = sites.certify()
    assert certificates, certificates.failures


def test_a_checkpoint_alone_says_no_heads() -> None:
    """Head sizes are not in a state dict: its weights are listed, with the reason, and never read as if they were."""
    sites = rw.find({f"attention.{name}": tensor for name, tensor in made("plain").state_dict().items()})
    assert {each.parameter for each in sites.unread} >= {"attention.query.weight", "attention.key.weight"}


@pytest.mark.parametrize("name", ["plain", "grouped", "cross"])
def test_the_balanced_start_is_the_draw_in_another_gauge(name: str) -> None:
    """The paper's start for attention: products, and so outputs, are those of the plain draw."""
    torch.manual_seed(5)
    drawn = FactorizedAttention(24, **VARIANTS[name], init="drawn", dtype=torch.float64)
    torch.manual_seed(5)
    started = FactorizedAttention(24, **VARIANTS[name], init="balanced", dtype=torch.float64)
    query, key, value = streams(drawn)
    torch.testing.assert_close(started(query, key, value), drawn(query, key, value))
    for one, two in ((started.qk, drawn.qk), (started.ov, drawn.ov)):
        torch.testing.assert_close(one.dense(), two.dense())
        assert balance(one, group=1).relative.max().item() < 1e-20
        assert balance(two, group=1).relative.min().item() > 1e-4
    assert all(linear.bias.eq(0).all() for linear in (started.query, started.key, started.value, started.output))


def test_the_truncated_start_cuts_full_heads_and_keeps_their_scale() -> None:
    torch.manual_seed(5)
    layer = FactorizedAttention(24, 4, head_size=2, value_size=3, init="truncated", bias=False, dtype=torch.float64)
    torch.manual_seed(5)
    full = FactorizedAttention(24, 4, head_size=6, init="drawn", bias=False, dtype=torch.float64)
    assert layer.scale == full.scale == 6**-0.5
    for small, large, rank in ((layer.qk, full.qk, 2), (layer.ov, full.ov, 3)):
        u, s, vh = torch.linalg.svd(large.dense())
        best = u[..., :rank] * s[..., None, :rank] @ vh[..., :rank, :]
        torch.testing.assert_close(small.dense(), best)
        assert balance(small).relative.max().item() < 1e-20


def test_a_draw_of_ones_own_and_the_model_s_own_scheme() -> None:
    torch.manual_seed(0)
    narrow = FactorizedAttention(64, 4, head_size=8, init="drawn", draw=lambda w: nn.init.normal_(w, std=0.02))
    assert narrow.key.weight.std().item() == pytest.approx(0.02, rel=0.05)
    torch.manual_seed(0)
    kept = FactorizedAttention(64, 4, head_size=8, draw=lambda w: nn.init.normal_(w, std=0.02))
    torch.testing.assert_close(kept.qk.dense(), narrow.qk.dense(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["deep", "deep and grouped", "deep and cross"])
def test_inner_factors_start_at_the_identity_and_learn(name: str) -> None:
    torch.manual_seed(5)
    deep = FactorizedAttention(24, **VARIANTS[name], dtype=torch.float64)
    torch.manual_seed(5)
    plain = FactorizedAttention(24, **{**VARIANTS[name], "depth": 0}, dtype=torch.float64)
    given = streams(deep)
    torch.testing.assert_close(deep(*given), plain(*given))
    assert (deep.qk.depth, deep.ov.depth) == (3, 3)
    assert (deep.key.bias, deep.value.bias) == (None, None)
    deep(*given).square().sum().backward()
    assert all(bool(parameter.grad.any()) for parameter in deep.parameters() if parameter.ndim == 2)
    with torch.no_grad():
        for inner in (deep.query_key_inner, deep.output_value_inner):
            inner.normal_()
    folded = FactorizedAttention(24, **{**VARIANTS[name], "depth": 0}, dtype=torch.float64)
    folded._take(deep.weights)
    torch.testing.assert_close(folded(*given), deep(*given))


def test_a_key_s_bias_changes_nothing() -> None:
    layer = made("plain")
    given = streams(layer)
    expected = layer(*given)
    with torch.no_grad():
        layer.key.bias.normal_(std=10)
    torch.testing.assert_close(layer(*given), expected)


def test_rebalancing_moves_the_heads_junction_of_deep_attention() -> None:
    layer = made("deep and grouped")
    given = streams(layer)
    expected = layer(*given)
    record = rw.balance_(layer)
    assert {each.gauge for each in record.moved} == {"a matrix"}
    assert len(record.moved) == 2
    assert record.drop > 0
    torch.testing.assert_close(layer(*given), expected)


# ---- from given weights ----------------------------------------------------------------------------------------------


def given(heads: int = 6, key_heads: int = 2, size: int = 4, *, bias: bool = True) -> HeadWeights:
    weights = {
        "query": matrix(heads * size, 24, seed=1),
        "key": matrix(key_heads * size, 20, seed=2),
        "value": matrix(key_heads * size, 17, seed=3),
        "output": matrix(24, heads * size, seed=4),
    }
    biases = {f"{name}_bias": matrix(1, each.shape[0], seed=9)[0] for name, each in weights.items()} if bias else {}
    return HeadWeights(**weights, **biases, heads=heads, key_heads=key_heads)


@pytest.mark.parametrize("key_heads", [1, 2, 6])
@pytest.mark.parametrize("bias", [True, False])
def test_at_full_size_the_function_is_the_given_one(key_heads: int, bias: bool) -> None:
    weights = given(key_heads=key_heads, bias=bias)
    exact = FactorizedAttention.from_weights(weights, head_size=4).eval()
    plain = FactorizedAttention(
        24, 6, head_size=4, key_heads=key_heads, key_width=20, value_width=17, bias=bias, dtype=torch.float64
    )
    plain._take(weights)
    query, key, value = streams(plain, keys=9)
    torch.testing.assert_close(exact(query, key, value), plain(query, key, value))
    assert exact.scale == plain.scale == 0.5


@pytest.mark.parametrize("key_heads", [2, 6])
def test_a_cut_is_the_best_there_is_for_every_product(key_heads: int) -> None:
    """Eckart and Young, on what shares a key head as one matrix: the error is what the singular values leave."""
    weights = given(key_heads=key_heads, bias=False)
    small = FactorizedAttention.from_weights(weights, head_size=2, value_size=3)
    assert small.scale == weights.head_size**-0.5
    for found, whole, rank in ((small.qk, weights.qk, 2), (small.ov, weights.ov, 3)):
        stacked = whole.dense().flatten(1, 2)
        error = torch.linalg.matrix_norm(found.dense().flatten(1, 2) - stacked)
        left = torch.linalg.svdvals(stacked)[:, rank:].square().sum(-1).sqrt()
        torch.testing.assert_close(error, left, rtol=1e-9, atol=1e-9)


def test_a_query_s_bias_is_cut_with_the_product_that_it_belongs_to() -> None:
    weights = given()
    small = FactorizedAttention.from_weights(weights, head_size=3)
    heads = weights.qk
    bias = weights.query_bias.reshape(2, 3, 1, 4)
    whole = (torch.cat([heads.left, bias], -2) @ heads.right).flatten(1, 2)
    found = small.weights.qk
    cut = torch.cat([found.left, small.query.bias.reshape(2, 3, 1, 3)], -2) @ found.right
    error = torch.linalg.matrix_norm(cut.flatten(1, 2) - whole)
    torch.testing.assert_close(error, torch.linalg.svdvals(whole)[:, 3:].square().sum(-1).sqrt(), rtol=1e-9, atol=1e-9)


def test_balancing_weights_moves_their_biases() -> None:
    weights = given()
    plain, moved = (
        FactorizedAttention(24, 6, head_size=4, key_heads=2, key_width=20, value_width=17, dtype=torch.float64)
        for _ in range(2)
    )
    plain._take(weights)
    moved._take(weights.balanced())
    query, key, value = streams(plain)
    torch.testing.assert_close(moved(query, key, value), plain(query, key, value))
    assert balance(weights.balanced().qk, group=1).relative.max().item() < 1e-20


# ---- in use ----------------------------------------------------------------------------------------------------------


def test_it_can_be_made_without_values() -> None:
    with torch.device("meta"):
        assert FactorizedAttention(24, 4, head_size=3, init="truncated").query.weight.is_meta


def test_dropout_is_for_training_alone() -> None:
    layer = made("plain", dropout=0.5)
    stream = streams(layer)[0]
    torch.testing.assert_close(layer(stream), layer(stream))
    layer.train()
    assert not torch.allclose(layer(stream), layer(stream))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: FactorizedAttention(24, 4, head_size=0), "head_size must be a whole number of at least 1, got 0"),
        (lambda: FactorizedAttention(24, 4, head_size=2, key_heads=3), "4 heads cannot share 3 key heads"),
        (lambda: FactorizedAttention(24, 4, head_size=2, depth=2), "depth, .*, must be 0 or 1, got 2"),
        (lambda: FactorizedAttention(24, 4, head_size=7, init="truncated"), "cuts heads of size 6 = 24 // 4 down"),
        (
            lambda: FactorizedAttention(24, 4, head_size=2, init="ones"),
            "init must be one of balanced, truncated, drawn",
        ),
        (lambda: FactorizedAttention.from_weights(given(), head_size=5), "head_size must be from 1 to 4"),
        (
            lambda: FactorizedAttention.from_weights(given(), head_size=4, value_size=0),
            "value_size must be from 1 to 4",
        ),
        (lambda: given(heads=6, key_heads=4), "6 heads cannot share 4 key heads"),
        (lambda: _replaced(query=torch.ones(25, 24)), r"the query weight must be \[6 heads \* head size, width\]"),
        (lambda: _replaced(key=torch.ones(10, 20)), "queries of head size 4 meet keys of head size 5"),
        (lambda: _replaced(output=torch.ones(24, 20)), r"the output weight must be .* got \(24, 20\)"),
        (lambda: _replaced(key_bias=torch.ones(3)), "the key bias must have 8 entries"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(make, text: str) -> None:
    with pytest.raises(UserError, match=text):
        make()


def _replaced(**changes: Tensor) -> HeadWeights:
    from dataclasses import replace

    return replace(given(), **changes)
