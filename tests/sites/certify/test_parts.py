"""The parts of certification: captured attention, axes, rotary fits, lookups."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rankwise.sites.certify.axes import arrangements, as_samples, readings
from rankwise.sites.certify.capture import Capture, visible
from rankwise.sites.certify.certificates import Certificate, Proof


def test_softmax_and_fused_attention_are_seen_alike() -> None:
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    with Capture() as fused:
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        F.scaled_dot_product_attention(q, k, v, is_causal=True)
        F.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(5, 5, dtype=torch.float64), scale=0.5)
    with Capture() as plain:
        logits = q @ k.mT / 2
        torch.softmax(logits.masked_fill(~mask, -torch.inf), -1)
        (logits * 1.0).softmax(dim=-1)
    for first, second in ((0, 0), (1, 0), (2, 1)):
        torch.testing.assert_close(fused.attentions[first].pattern, plain.attentions[second].pattern)
    hidden = ~visible(plain.attentions[0].logits)
    assert torch.equal(hidden, ~mask.expand_as(hidden))
    assert bool(visible(fused.attentions[0].logits).all())


def test_grouped_fused_attention_is_captured_for_every_query_head() -> None:
    q, k, v = torch.randn(2, 6, 5, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)
    with Capture() as seen:
        F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(seen.attentions[0].logits, q @ k.repeat_interleave(3, 1).mT / 2)


def test_the_logits_are_those_before_the_largest_was_taken_off() -> None:
    logits = torch.randn(2, 3, 5, 5)
    with Capture() as seen:
        torch.softmax(logits - logits.max(dim=-1, keepdim=True).values, -1)
    assert torch.equal(seen.attentions[0].logits, logits)


@pytest.mark.parametrize("weights", [False, True])
def test_multihead_attention_is_seen_and_its_functions_are_put_back(weights: bool) -> None:
    softmax, fused = F.softmax, F.scaled_dot_product_attention
    module = nn.MultiheadAttention(8, 2).eval()
    stream = torch.randn(5, 3, 8)
    replaced = torch.randn(5, 3, 8)
    with Capture({":q": replaced}) as seen, torch.no_grad():
        module(stream, stream, stream, need_weights=weights)
    assert len(seen.attentions) == 1
    assert torch.equal(seen.inputs[":q"], replaced)
    assert torch.equal(seen.inputs[":k"], stream)
    assert (F.softmax, F.scaled_dot_product_attention) == (softmax, fused)


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(2, 7), min_size=4, max_size=4, unique=True),
    shape=st.sampled_from(["bhqk", "(b h) q k", "(h b) q k", "b q h k", "b (q h) k", "b (h q) k"]),
    sink=st.booleans(),
)
def test_the_right_reading_is_among_those_that_the_sizes_allow(sizes: list[int], shape: str, sink: bool) -> None:
    from einops import rearrange

    samples, heads, queries, keys = sizes
    logits = torch.randn(samples, heads, queries, keys + sink)
    pattern = "b h q k" if shape == "bhqk" else shape
    captured = rearrange(logits, f"b h q k -> {pattern}")
    found = list(arrangements(captured, samples, heads, queries, keys))
    assert any(torch.equal(each, logits[..., :keys]) for each in found)


@pytest.mark.parametrize("lead", [(4, 7), (7, 4), (28,), (2, 2, 7)])
def test_a_stream_is_read_as_samples_and_positions(lead: tuple[int, ...]) -> None:
    rows = torch.arange(28.0).reshape(1, 28, 1)
    for samples, positions, shape, order in readings(lead):
        assert as_samples(rows, shape, order).shape == (samples, 1, positions, 1)
    assert {(samples, positions) for samples, positions, _, _ in readings(lead)} & {(4, 7), (1, 28)}


def test_reproduced_numbers_stand_where_the_gauge_does_not() -> None:
    passed, failed, absent = Proof("passed", 1e-9), Proof("failed", 1.0), Proof.absent("unseen")
    partial = Proof("passed", 1e-9, partial=True)

    def outcome(value: Proof, gauge: Proof) -> bool:
        return Certificate(site="s", value=value, gauge=gauge).passed

    assert outcome(passed, absent)
    assert outcome(passed, failed)
    assert outcome(absent, passed)
    assert outcome(partial, passed)
    assert not outcome(partial, failed)
    assert not outcome(partial, absent)
    assert not outcome(failed, passed)
    assert not outcome(absent, absent)


def test_numbers_that_are_not_finite_prove_nothing() -> None:
    assert Proof.of(float("nan"), 1e-5).status == "absent"
    assert Proof.of(float("inf"), 1e-5).status == "failed"
