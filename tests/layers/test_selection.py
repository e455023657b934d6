"""What is factorized unless told otherwise, and how to tell."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import rankwise as rw
from rankwise.errors import UserError
from tests.layers.nets import CifarResNet, on_meta, vgg19, wide_resnet


def chosen(model: nn.Module, **settings) -> list[str]:
    return list(rw.factorization_plan(model, rank=1, **settings).ranks)


def left(model: nn.Module, **settings) -> dict[str, str]:
    return {each.parameter: each.reason for each in rw.factorization_plan(model, rank=1, **settings).dense}


@pytest.mark.parametrize(
    ("net", "stem", "head", "count"),
    [
        (on_meta(CifarResNet, 20), "conv1", "linear", 18),
        (on_meta(CifarResNet, 32, projected=True), "conv1", "linear", 32),
        (on_meta(vgg19, 10), "0.0", "3", 15),
        (on_meta(wide_resnet, 28, 10, 10), "0", "17", 27),
    ],
)
def test_of_a_conv_net_all_but_stem_and_head_as_in_the_paper(net, stem, head, count):
    assert len(chosen(net)) == count
    assert left(net) == {
        f"{stem}.weight": "it reads the input: select it by name",
        f"{head}.weight": "it writes the output: select it by name",
    }


def test_of_a_transformer_its_feed_forward_layers():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(nn.Embedding(20, 8), nn.TransformerEncoder(layer, 2), nn.Linear(8, 20))
    assert chosen(model) == ["0", *(f"1.layers.{n}.linear{k}" for n in (0, 1) for k in (1, 2))]
    reasons = left(model)
    assert reasons["2.weight"] == "it writes the output: select it by name"
    assert reasons["1.layers.0.self_attn.in_proj_weight"].startswith("it belongs to a MultiheadAttention")


def test_projections_of_attention_stay_dense_and_say_so():
    class CausalSelfAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n_head, self.n_embd = 2, 8
            self.c_attn, self.c_proj = nn.Linear(8, 24), nn.Linear(8, 8)

    model = nn.ModuleDict({"h": nn.ModuleList([nn.ModuleDict({"attn": CausalSelfAttention()})]), "up": nn.Linear(8, 9)})
    fused = "a fused projection of queries, keys and values of attention"
    single = "a projection of attention"
    rest = "and a factor of a product already: shrink the heads, or select it by name"
    assert left(model) == {"h.0.attn.c_attn.weight": f"{fused}, {rest}", "h.0.attn.c_proj.weight": f"{single}, {rest}"}
    plan = rw.factorization_plan(model, rank=1, select="h.*")
    assert [layer.notes[0] for layer in plan.layers] == [fused, single]


def test_a_table_inside_attention_is_no_projection():
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        config = transformers.T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=4)
        model = transformers.T5Model(config)
    reasons = left(model)
    tables = {name: reason for name, reason in reasons.items() if "relative_attention_bias" in name}
    assert set(tables.values()) == {"a part of attention that is no projection: select it by name"}
    assert len(tables) == 2
    assert reasons["encoder.block.0.layer.0.SelfAttention.q.weight"].startswith("a projection of attention")


def test_a_head_is_told_by_standing_alone():
    equal = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    assert chosen(equal) == ["0", "1", "2"]
    assert chosen(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3))) == ["0", "1"]
    assert chosen(nn.Linear(8, 3)) == [""]


def test_a_single_row_has_nothing_to_factorize():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1), nn.Linear(8, 8))
    assert "1.weight" not in chosen(model)
    assert "1.weight" not in left(model)  # not a matrix at all
    thin = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 1, (1, 3)))
    assert left(thin, form="channel")["2.weight"] == "it has one row or column: nothing to factorize"


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("conv1", ["conv1"]),
        ("layer?.0.conv1", ["layer1.0.conv1", "layer2.0.conv1", "layer3.0.conv1"]),
        (["conv1", "linear"], ["conv1", "linear"]),
        (lambda name, module: isinstance(module, nn.Linear), ["linear"]),
        (lambda name, module: name.startswith("layer3"), ["layer3.0.conv1", "layer3.0.conv2"]),
    ],
)
def test_selecting_by_path_and_by_function(select, expected):
    net = on_meta(CifarResNet, 8)
    assert chosen(net, select=select) == expected
    assert set(left(net, select=select).values()) == {"it is not selected"}


def test_tied_weights_are_selected_together():
    model = nn.ModuleDict({"words": nn.Embedding(20, 8), "up": nn.Linear(8, 8), "head": nn.Linear(8, 20)})
    model["head"].weight = model["words"].weight
    assert chosen(model) == ["words", "head", "up"]
    assert left(model, select=["words", "up"]) == {"words.weight": "it is tied to head, which is not selected"}


@pytest.mark.parametrize(
    ("model", "select", "message"),
    [
        (CifarResNet(8), "conv9", "select='conv9' matches none of the 8 layers that could be factorized: conv1, "),
        (
            CifarResNet(8),
            lambda name, module: False,
            r"nothing to factorize: 8 matrices stay dense, such as conv1.weight",
        ),
        (nn.LSTM(4, 4), None, r"nothing to factorize: 2 matrices stay dense, such as weight_ih_l0 \(it belongs to"),
        (nn.LSTM(4, 4), "*", "matches none of the 0 layers that could be factorized: there are none"),
        (nn.LayerNorm(4), None, "nothing to factorize: 0 matrices stay dense$"),
    ],
)
def test_selecting_nothing_is_said(model, select, message):
    with pytest.raises(UserError, match=message):
        rw.factorize(model, rank=1, select=select)


def test_real_transformers_keep_their_attention():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    names = chosen(model)
    assert names[0] == "model.embed_tokens"
    assert {name.split(".")[-1] for name in names[1:]} == {"gate_proj", "up_proj", "down_proj"}
    assert len(names) == 7
    reasons = left(model)
    assert sum(reason.startswith("a projection of attention") for reason in reasons.values()) == 8
    assert reasons["lm_head.weight"] == "it writes the output: select it by name"
