"""GPT-2's linear layers, stored input first: the same products, and the same layers back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import rankwise as rw
from rankwise.layers.conv1d import FactorizedConv1D
from tests.layers.draws import matrix

transformers = pytest.importorskip("transformers")


def dense(inputs: int = 5, outputs: int = 7) -> nn.Module:
    torch.manual_seed(0)
    layer = transformers.pytorch_utils.Conv1D(outputs, inputs).double()
    nn.init.normal_(layer.bias)
    return layer


@pytest.mark.parametrize("execution", ["two-step", "one-step"])
@pytest.mark.parametrize("depth", [0, 1])
def test_at_full_rank_it_computes_and_folds_to_the_dense_layer(execution, depth):
    whole, given = dense(), matrix(3, 5)
    made = FactorizedConv1D.from_dense(whole, rank=5, depth=depth, execution=execution)
    torch.testing.assert_close(made(given), whole(given))
    torch.testing.assert_close(made.weight, whole.weight)
    folded = made.fold()
    assert type(folded) is type(whole)
    torch.testing.assert_close(folded.state_dict(), whole.state_dict())


def test_its_product_is_a_linear_layer_s():
    made = nn.ModuleDict({"up": FactorizedConv1D.from_dense(dense(), rank=2)})
    (site,) = rw.find(made)
    assert (site.name, site.shape) == ("up.linear", (7, 5))
    values = torch.linalg.svdvals(dense().weight)
    torch.testing.assert_close(site.product(made).spectrum().values, values[:2].detach())


def test_a_new_layer_starts_in_the_dense_layer_s_scheme():
    torch.manual_seed(3)
    whole = transformers.pytorch_utils.Conv1D(8, 6)
    torch.manual_seed(3)
    torch.testing.assert_close(FactorizedConv1D(6, 8, rank=6).weight, whole.weight, atol=1e-7, rtol=1e-5)


def test_gpt2_by_name():
    config = transformers.GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=2, n_positions=12)
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(config)
    plan = rw.factorization_plan(model, rank=4)
    named = {layer.names: layer for layer in plan.layers}
    assert named["transformer.wte", "lm_head"].notes[0] == "tied: its factors are shared"
    assert {names[0].split(".")[-1] for names in named} == {"wte", "wpe", "c_fc", "c_proj"}
    up = named[("transformer.h.0.mlp.c_fc",)]
    assert (up.weight_shape, up.shape, up.dense_work) == ((16, 64), (64, 16), 16 * 64)
    assert {each.reason.split(",")[0] for each in plan.dense} == {
        "a fused projection of queries",
        "a projection of attention",
    }
