"""Attention that is told by the class of its module, without any configuration: torch's own, nanoGPT's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import rankwise as rw
from rankwise.sites.certify.tiny import randomized


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_whole_transformer_of_torch(norm_first: bool) -> None:
    model = randomized(nn.Transformer(48, 6, 2, 1, 56, batch_first=True, norm_first=norm_first))
    certificates = rw.find(model).certify(inputs={"src": torch.randn(4, 9, 48), "tgt": torch.randn(4, 7, 48)})
    assert certificates, certificates.failures
    assert {"encoder.layers.1.self.qk", "decoder.layers.0.self.ov", "decoder.layers.0.cross.qk"} <= set(certificates)
    assert len(certificates) == 2 * (2 + 2)
    assert all(each.orientation for each in certificates.values())


def test_a_learned_key_and_value_are_no_part_of_the_output_of_tokens() -> None:
    certificates = rw.find(randomized(nn.MultiheadAttention(48, 6, add_bias_kv=True))).certify()
    assert certificates["attention.qk"].passed
    assert not certificates["attention.ov"].passed


class CausalSelfAttention(nn.Module):
    """As nanoGPT names it: one projection for queries, keys and values, one after the other."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.n_head, self.n_embd = heads, width
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            each.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for each in self.c_attn(x).split(self.n_embd, 2)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).flatten(-2))


def test_nanogpt() -> None:
    blocks = nn.ModuleList(nn.ModuleDict({"attn": CausalSelfAttention(48, 6)}) for _ in range(2))
    model = randomized(nn.ModuleDict({"transformer": nn.ModuleDict({"h": blocks})}))
    sites = rw.find(model)
    assert sites.names == ("layers.0.qk", "layers.0.ov", "layers.1.qk", "layers.1.ov")
    certificates = sites.certify()
    assert certificates, certificates.failures
    assert all(each.value.detail == "on made-up arguments" for each in certificates.values())
