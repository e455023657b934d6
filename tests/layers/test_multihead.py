"""Factorized attention in the place of torch's own: the same calls, the same answers, and back again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rankwise as rw
from rankwise.errors import UserError
from rankwise.layers.multihead import FactorizedMultiheadAttention
from tests.layers.draws import generator


def dense_module(**settings: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(24, 4, **{"batch_first": True, **settings}).double().eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module


def streams(module: nn.MultiheadAttention) -> list[Tensor]:
    shapes = [(2, 5, 24), (2, 7, module.kdim), (2, 7, module.vdim)]
    drawn = [torch.randn(shape, generator=generator(at), dtype=torch.float64) for at, shape in enumerate(shapes)]
    return drawn if module.batch_first else [one.transpose(0, 1).contiguous() for one in drawn]


MASKS: dict[str, dict[str, Tensor]] = {
    "none": {},
    "padding": {"key_padding_mask": torch.arange(7).expand(2, 7) >= torch.tensor([[7], [4]])},
    "attention": {"attn_mask": torch.ones(5, 7, dtype=torch.bool).triu(3)},
    "numbers": {"attn_mask": torch.randn(5, 7, generator=generator(5), dtype=torch.float64)},
    "per head": {"attn_mask": torch.randn(8, 5, 7, generator=generator(5), dtype=torch.float64)},
    "both": {
        "key_padding_mask": torch.arange(7).expand(2, 7) >= torch.tensor([[7], [5]]),
        "attn_mask": torch.ones(5, 7, dtype=torch.bool).triu(3),
    },
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("settings", [{}, {"batch_first": False}, {"bias": False}, {"kdim": 10, "vdim": 14}])
def test_at_full_size_it_answers_as_the_dense_module(settings: dict[str, Any], mask: str) -> None:
    dense = dense_module(**settings)
    layer = FactorizedMultiheadAttention.from_multihead(dense, head_size=6)
    inputs = streams(dense)
    # Torch adds masks of one type only.
    given = {name: each if each.dtype == torch.bool else each.clone() for name, each in MASKS[mask].items()}
    for options in ({}, {"need_weights": False}, {"average_attn_weights": False}):
        expected, expected_weights = dense(*inputs, **given, **options)
        found, weights = layer(*inputs, **given, **options)
        torch.testing.assert_close(found, expected)
        assert (weights is None) == (expected_weights is None)
        if weights is not None:
            torch.testing.assert_close(weights, expected_weights)


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_single_sequence_needs_no_batch(batch_first: bool) -> None:
    dense = dense_module(batch_first=batch_first)
    layer = FactorizedMultiheadAttention.from_multihead(dense, head_size=6)
    stream = torch.randn(5, 24, dtype=torch.float64)
    padding = torch.tensor([False, False, False, True, True])
    for one, two in zip(
        layer(stream, stream, stream, key_padding_mask=padding),
        dense(stream, stream, stream, key_padding_mask=padding),
        strict=True,
    ):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("training", [True, False])
def test_it_takes_its_place_in_torch_s_transformer(training: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    stream, padding = torch.randn(2, 7, 24), torch.arange(7).expand(2, 7) >= torch.tensor([[7], [5]])
    expected = model(stream, src_key_padding_mask=padding)
    for each in model.layers:
        each.self_attn = FactorizedMultiheadAttention.from_multihead(each.self_attn, head_size=6)
    found = model(stream, src_key_padding_mask=padding)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert [site.name for site in rw.find(model) if site.attention] == [
        f"layers.{at}.{kind}" for at in range(2) for kind in ("qk", "ov")
    ]
    for each in model.layers:
        each.self_attn = FactorizedMultiheadAttention.from_multihead(each.self_attn.fold(), head_size=2)
    cut = model(stream, src_key_padding_mask=padding)
    assert not torch.allclose(cut, expected, atol=1e-2)
    cut.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("settings", [{}, {"bias": False}, {"kdim": 10, "vdim": 14}])
def test_folding_gives_the_dense_module_of_the_same_function(settings: dict[str, Any]) -> None:
    layer = FactorizedMultiheadAttention.from_multihead(dense_module(**settings), head_size=3, value_size=4)
    dense = layer.fold()
    assert type(dense) is nn.MultiheadAttention
    inputs = streams(dense)
    for one, two in zip(dense(*inputs), layer(*inputs), strict=True):
        torch.testing.assert_close(one, two)


def test_deep_heads_answer_as_the_dense_module_and_fold_to_it() -> None:
    module = nn.MultiheadAttention(24, 4, batch_first=True, dtype=torch.float64)
    nn.init.normal_(module.in_proj_bias)
    deep = FactorizedMultiheadAttention.from_multihead(module, head_size=6, depth=1)
    stream = torch.randn(2, 5, 24, dtype=torch.float64)
    torch.testing.assert_close(deep(stream, stream, stream), module(stream, stream, stream))
    with torch.no_grad():
        deep.query_key_inner.normal_()
        deep.output_value_inner.normal_()
    torch.testing.assert_close(deep.fold()(stream, stream, stream), deep(stream, stream, stream))


def test_folding_repeats_shared_heads_and_carries_a_scale_of_its_own() -> None:
    torch.manual_seed(0)
    layer = FactorizedMultiheadAttention(24, 4, head_size=5, key_heads=2, scale=0.3, dtype=torch.float64).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    dense = layer.fold()
    stream = torch.randn(2, 5, 24, dtype=torch.float64)
    torch.testing.assert_close(dense(stream, stream, stream)[0], layer(stream, stream, stream)[0])


def test_what_torch_s_module_computes_beside_its_products_is_refused() -> None:
    for settings in ({"add_bias_kv": True}, {"add_zero_attn": True}):
        with pytest.raises(UserError, match="no factorized form: leave it dense"):
            FactorizedMultiheadAttention.from_multihead(dense_module(**settings), head_size=3)
    wide = FactorizedMultiheadAttention(24, 4, head_size=8)
    with pytest.raises(UserError, match=r"do not fit into the 24 / 4"):
        wide.fold()
    stream = torch.randn(2, 5, 24)
    with pytest.raises(UserError, match="give the mask as well"):
        wide(stream, stream, stream, is_causal=True)


def test_modes_types_and_frozen_weights_are_taken_over() -> None:
    dense = dense_module().train().to(torch.bfloat16).requires_grad_(False)
    layer = FactorizedMultiheadAttention.from_multihead(dense, head_size=3)
    assert layer.training
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.bfloat16}
    assert not any(parameter.requires_grad for parameter in layer.parameters())
