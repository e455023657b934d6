"""Finding products in modules, state dicts and shapes; nothing is left out without a reason."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rankwise.errors import UserError
from rankwise.sites.find import find
from rankwise.sites.registry import forget_layout, register_layout
from rankwise.sites.singles import is_matrix
from rankwise.sites.sites import Sites
from tests.sites.models import GPT2, LLAMA, Tree, gpt2_shapes, llama_shapes, state

LLAMA_SITES = ["layers.0.qk", "layers.0.ov", "layers.1.qk", "layers.1.ov"]


def attention(sites: Sites) -> list[str]:
    return [site.name for site in sites if site.attention is not None]


def matrices(shapes: dict[str, tuple[int, ...]]) -> set[str]:
    return {name for name, shape in shapes.items() if is_matrix(shape)}


def everything_is_told(sites: Sites, shapes: dict[str, tuple[int, ...]]) -> None:
    unread = {each.parameter for each in sites.unread}
    assert sites.covered | unread | set(sites.tied) >= matrices(shapes)
    assert not sites.covered & unread


def test_a_state_dict_with_its_config_is_enough():
    tensors = state(llama_shapes())
    sites = find(tensors, config=LLAMA)
    assert attention(sites) == LLAMA_SITES
    assert sites.unread == ()
    assert {site.kind for site in sites} == {"qk", "ov", "embed", "mlp"}
    everything_is_told(sites, llama_shapes())
    site = sites["layers.1.qk"]
    assert (site.layer, site.stack, site.layout) == (1, "", "llama")
    assert site.attention.module == "layers.1.self_attn"
    assert site.attention.inputs["q"] == "layers.1.self_attn.q_proj"


def test_shapes_alone_give_the_same_sites():
    shapes = llama_shapes(bias=True)
    assert list(find(shapes, config=LLAMA)) == list(find(state(shapes), config=LLAMA))


def test_a_module_brings_its_own_config():
    model = Tree(state(llama_shapes()), LLAMA)
    sites = find(model)
    assert attention(sites) == LLAMA_SITES
    assert sites.source is model


def test_a_given_config_wins_over_the_modules_own():
    model = Tree(state(llama_shapes()), {**LLAMA, "model_type": "something-else"})
    assert attention(find(model)) == []
    assert attention(find(model, config=LLAMA)) == LLAMA_SITES


@pytest.mark.parametrize(
    "prefix", ["model.", "module.model.", "_orig_mod.", "module._orig_mod.model.", "base_model.model."]
)
def test_wrappers_in_front_of_the_names_change_nothing_but_the_parameters(prefix):
    sites = find(state(llama_shapes(prefix)), config=LLAMA)
    assert attention(sites) == LLAMA_SITES
    assert sites["layers.0.qk"].parameters == (
        f"{prefix}layers.0.self_attn.q_proj.weight",
        f"{prefix}layers.0.self_attn.k_proj.weight",
    )


def test_products_of_a_module_are_views_of_its_parameters():
    model = Tree(state(llama_shapes()), LLAMA)
    product = find(model)["layers.0.qk"].product(model)
    query = model.get_parameter("layers.0.self_attn.q_proj.weight")
    before = query.detach().clone()
    with torch.no_grad():
        product.left.zero_()
    assert torch.count_nonzero(query) == 0
    assert torch.count_nonzero(before) == before.numel()


def test_gradients_and_optimizer_states_are_read_through_the_same_sites():
    model = Tree(state(llama_shapes()), LLAMA)
    site = find(model)["layers.0.qk"]
    site.product(model).dense().square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert set(gradients) == set(site.parameters)
    assert site.product(gradients).dense().shape == (2, 3, 10, 10)


def test_an_unknown_architecture_is_read_matrix_by_matrix_and_its_attention_listed():
    shapes = {
        "tower.0.attn.query_projection.weight": (6, 5),
        "tower.0.self_attention.out.weight": (5, 6),
        "tower.0.ff.up.weight": (9, 5),
        "tower.0.norm.weight": (5,),
        "word_embed.weight": (30, 5),
    }
    sites = find(shapes, config={"model_type": "house-model"})
    assert [site.kind for site in sites] == ["mlp", "embed"]
    assert {each.parameter for each in sites.unread} == set(list(shapes)[:2])
    reason = sites.unread[0].reason
    assert reason.startswith("attention of model type house-model that no layout fits: ")
    assert "rankwise.register_layout" in reason
    everything_is_told(sites, shapes)


def test_without_a_config_nothing_is_guessed():
    sites = find(llama_shapes())
    assert attention(sites) == []
    assert len(sites.unread) == 8
    assert all(each.reason.startswith("attention that no layout fits") for each in sites.unread)


def test_heads_that_do_not_fit_the_weights_are_unread_and_the_rest_is_read():
    sites = find(llama_shapes(), config={**LLAMA, "num_attention_heads": 5, "num_key_value_heads": 5})
    assert attention(sites) == []
    assert {each.parameter.split(".")[-2] for each in sites.unread} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert all("does not fit layers." in each.reason for each in sites.unread)
    assert len(sites.select(kind="mlp")) == 4


def test_a_config_that_cannot_be_computed_is_a_reason_and_no_crash():
    sites = find(llama_shapes(), config={**LLAMA, "num_attention_heads": "six"})
    assert "'num_attention_heads // g' needs two numbers, got 'six' and 2" in sites.unread[0].reason


def test_tied_tensors_are_read_once():
    model = Tree(state(gpt2_shapes()), GPT2)
    head = nn.Linear(15, 32, bias=False)
    head.weight = model.get_parameter("wte.weight")
    model.add_module("lm_head", head)
    sites = find(model)
    assert sites.tied == {"lm_head.weight": "wte.weight"}
    assert [site.name for site in sites.select(kind="embed")] == ["wte.embed", "wpe.embed"]


def test_unread_blocks_keep_their_own_reason():
    shapes = llama_shapes(layers=1) | {
        f"layers.1.self_attn.{name}.weight": (30, 10) for name in ("qkv_proj", "out_proj", "output_gate")
    }
    config = {**LLAMA, "model_type": "minimax", "layer_types": ["full_attention", "linear_attention"]}
    sites = find(shapes, config=config)
    assert attention(sites) == ["layers.0.qk", "layers.0.ov"]
    assert {each.reason.split(":")[0] for each in sites.unread} == {"linear attention"}
    everything_is_told(sites, shapes)


def test_what_is_left_beside_a_product_is_listed_with_the_layouts_reason():
    shapes = llama_shapes() | {f"layers.{layer}.self_attn.gate_proj.weight": (24, 10) for layer in range(2)}
    sites = find(
        shapes, config={**LLAMA, "model_type": "afmoe", "layer_types": ["full_attention", "sliding_attention"]}
    )
    assert attention(sites) == ["layers.0.qk", "layers.1.qk"]
    assert [site.attention.rotary is not None for site in sites.select(kind="qk")] == [False, True]
    assert {each.reason for each in sites.unread} == {"a gate stands between the values and the output projection"}
    assert {each.parameter.split(".")[-2] for each in sites.unread} == {"v_proj", "o_proj", "gate_proj"}
    everything_is_told(sites, shapes)


def test_a_users_layout_wins_over_the_built_in_one():
    register_layout(
        """
[own_llama]
types = ["llama"]
sizes = { h = "num_key_value_heads" }
[own_llama.attention.self]
at = "layers.{layer}.self_attn"
q = "q_proj: (h r) d"
k = "k_proj: (h e) d"
v = "v_proj: (h r) d"
o = "o_proj: d (h x)"
"""
    )
    try:
        sites = find(llama_shapes(), config=LLAMA)
    finally:
        forget_layout("own_llama")
    assert sites.unread
    assert find(llama_shapes(), config=LLAMA).unread == ()


def test_a_config_of_the_models_own_kind_is_left_alone():
    class CausalSelfAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config, self.n_head, self.n_embd = object(), 3, 6
            self.c_attn, self.c_proj = nn.Linear(6, 18), nn.Linear(6, 6)

    model = nn.ModuleDict({"h": nn.ModuleList([nn.ModuleDict({"attn": CausalSelfAttention()})])})
    model.config = object()
    assert attention(find(model)) == ["layers.0.qk", "layers.0.ov"]


def test_layouts_may_be_given_for_one_call():
    assert attention(find(llama_shapes(), config=LLAMA, layouts=[])) == []


def test_class_layouts_read_the_modules_attributes():
    class HouseAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = 3
            self.query, self.key = nn.Linear(5, 6), nn.Linear(5, 6)

    register_layout(
        """
[house]
classes = ["HouseAttention"]
sizes = { h = "heads" }
[house.attention.self]
at = ""
site = "{path}"
q = "query: (h r) d"
k = "key: (h r) d"
"""
    )
    try:
        model = nn.ModuleDict({"blocks": nn.ModuleList([nn.ModuleDict({"attn": HouseAttention()}) for _ in range(2)])})
        sites = find(model)
    finally:
        forget_layout("house")
    assert attention(sites) == ["layers.0.qk", "layers.1.qk"]
    assert sites["layers.1.qk"].effective(model).dense().shape == (3, 6, 6)


@pytest.mark.parametrize(
    ("source", "config", "message"),
    [
        (3, None, "expected a module, a checkpoint or a mapping of names to tensors, got int"),
        ({"model": {"a": 1}}, None, "'model' is a dict, not a tensor: give the state dict itself"),
        ({}, "config.json", "config must be a mapping, as read from config.json, got str"),
    ],
)
def test_wrong_arguments_are_said(source, config, message):
    with pytest.raises(UserError, match=message):
        find(source, config=config)


def test_an_empty_source_has_no_sites():
    assert len(find({}, config=LLAMA)) == 0


def test_tensors_whose_names_differ_by_weight_alone_are_both_sites():
    sites = find({"h.0.x": (4, 3), "h.0.x.weight": (5, 6), "y.weight": (2, 2)})
    assert {site.name: site.shape for site in sites} == {
        "h.0.x.mlp": (4, 3),
        "h.0.x.weight.mlp": (5, 6),
        "y.matrix": (2, 2),
    }


def test_numbers_that_no_product_is_made_of_are_unread():
    tensors = {
        "a.weight": torch.ones(3, 4),
        "b.weight": torch.ones(3, 4, dtype=torch.int64),
        "c.weight": torch.ones(3, 4, dtype=torch.complex64),
        "d.weight": torch.ones(3, 4).to(torch.float8_e4m3fn),
        "positions": torch.arange(7),
    }
    sites = find(tensors)
    assert sites.names == ("a.matrix",)
    assert {each.parameter: each.reason.split()[0] for each in sites.unread} == {
        "b.weight": "int64",
        "c.weight": "complex64",
        "d.weight": "float8_e4m3fn",
    }
