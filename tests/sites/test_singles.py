"""What is no attention product: adapters, factorized layers, every other matrix as a product of one."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankwise.errors import UserError
from rankwise.sites.find import find
from rankwise.sites.singles import adapters, factorized, is_matrix, looks_like_attention, single
from tests.sites.models import state


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), False),
        ((5,), False),
        ((5, 1), False),
        ((1, 1, 7), False),
        ((5, 2), True),
        ((5, 1, 2), True),
        ((3, 3, 3), True),
    ],
)
def test_a_matrix_has_two_axes_longer_than_one(shape, expected):
    assert is_matrix(shape) is expected


@pytest.mark.parametrize(
    "name",
    [
        "h.0.attn.c_proj.weight",
        "layers.0.self_attn.o_proj.weight",
        "encoder.layer.0.attention.output.dense.weight",
        "decoder.block.0.layer.1.EncDecAttention.o.weight",
        "layers.3.linear_attn.in_proj_z.weight",
        "blocks.0.rel_attn.r",
        "tower.query.weight",
        "x.q_lin.weight",
        "x.query_key_value.weight",
        "y.to_q.weight",
        "y.wq.weight",
        "z.in_proj_weight",
        "cross_attn_token_to_image.out_proj.weight",
        "encoder.attentions.3.out_lin.weight",
    ],
)
def test_attention_is_told_by_a_component_of_the_name(name):
    assert looks_like_attention(name)


@pytest.mark.parametrize(
    "name",
    [
        "layers.0.mlp.up_proj.weight",
        "layers.0.mlp.key.weight",
        "blocks.0.feed_forward.key.weight",
        "layers.0.post_attention_layernorm.fc.weight",
        "layers.0.attn_hc.fn",
        "query_tokens",
        "key_frames.weight",
        "value_head.weight",
        "monkey.weight",
        "embed_tokens.weight",
        "cross_attn_layers.0.mlp.gate_proj.weight",
    ],
)
def test_norms_and_feed_forward_layers_beside_attention_are_none(name):
    assert not looks_like_attention(name)


@pytest.mark.parametrize(
    ("name", "shape", "kind", "batch", "extent"),
    [
        ("layers.4.mlp.up_proj.weight", (14, 10), "mlp", (), (14, 10)),
        ("model.embed_tokens.weight", (32, 10), "embed", (), (32, 10)),
        ("lm_head.weight", (32, 10), "embed", (), (32, 10)),
        ("projector.weight", (9, 10), "matrix", (), (9, 10)),
        ("layers.2.mlp.experts.gate_up_proj", (4, 10, 12), "mlp", (("expert", 4),), (4, 10, 12)),
        ("stem.weight", (8, 3, 5, 5), "conv", (), (8, 75)),
        ("conv1d.weight", (8, 3, 5), "conv", (), (8, 15)),
        ("mixer.conv1d.weight", (8, 1, 4), "matrix", (), (8, 4)),
        ("position_embedding", (1, 20, 10), "embed", (), (20, 10)),
        ("patch.weight", (8, 3, 2, 4, 4), "conv", (), (8, 96)),
    ],
)
def test_a_single_matrix_keeps_every_number(name, shape, kind, batch, extent):
    site = single(name, shape)
    assert (site.kind, site.batch, site.shape) == (kind, batch, extent)
    tensor = state({name: shape})[name]
    dense = site.product({name: tensor}).dense()
    assert dense.shape == extent
    torch.testing.assert_close(dense.flatten(), tensor.flatten())
    assert site.name == f"{name.removesuffix('.weight')}.{kind}"


def test_the_layer_is_the_first_number_of_the_path():
    assert single("model.layers.7.mlp.experts.3.up.weight", (4, 5)).layer == 7
    assert single("head.weight", (4, 5)).layer is None


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5).map(tuple).filter(is_matrix))
def test_any_stored_matrix_can_be_read_without_losing_a_number(shape):
    name = "some.weight"
    tensor = torch.arange(float(math.prod(shape))).reshape(shape)
    dense = single(name, shape).product({name: tensor}).dense()
    assert torch.equal(dense.flatten(), tensor.flatten())


LORA = {
    "base_model.model.layers.0.q_proj.lora_A.default.weight": (2, 10),
    "base_model.model.layers.0.q_proj.lora_B.default.weight": (12, 2),
}


@pytest.mark.parametrize(
    ("config", "scaling"),
    [
        (None, 1.0),
        ({"lora_alpha": 8}, 4.0),
        ({"lora_alpha": 8, "use_rslora": True}, 8 / math.sqrt(2)),
        ({"lora_alpha": 8, "alpha_pattern": {"q_proj": 3}}, 1.5),
        ({"lora_alpha": 8, "alpha_pattern": {"proj": 3}}, 4.0),
        ({"lora_alpha": 8, "alpha_pattern": {r"layers\.[01]\..*": 5, "q_proj": 3}}, 2.5),
        ({"lora_alpha": 8, "alpha_pattern": {"(": 5}}, 4.0),
        ({"lora_alpha": 0}, 0.0),
    ],
)
def test_an_adapter_is_the_product_of_its_pair_with_its_scaling(config, scaling):
    tensors = state(LORA)
    (site,) = adapters(LORA, config)
    down, up = tensors.values()
    assert (site.name, site.kind, site.layer, site.shape) == ("layers.0.q_proj.lora", "lora", 0, (12, 10))
    torch.testing.assert_close(site.product(tensors).dense(), up @ down)
    torch.testing.assert_close(site.effective(tensors).dense(), scaling * up @ down)


@pytest.mark.parametrize("alpha", ["eight", [8], True, math.nan])
def test_an_alpha_that_is_no_number_is_said(alpha):
    with pytest.raises(UserError, match=r"gives layers\.0\.q_proj the lora_alpha"):
        adapters(LORA, {"lora_alpha": alpha})


def test_without_a_configuration_the_scaling_is_said_to_be_unknown():
    [site] = adapters(LORA)
    assert site.scaling == 1.0
    assert site.notes == ("no adapter configuration says alpha: the update is taken as B A, not scaled",)


def test_a_pair_without_its_partner_is_no_adapter():
    assert adapters({name: shape for name, shape in LORA.items() if "lora_B" in name}) == []


def test_an_adapter_as_saved_has_no_name_inside():
    saved = {name.replace(".default", ""): shape for name, shape in LORA.items()}
    (site,) = adapters(saved)
    assert site.name == "layers.0.q_proj.lora"


def test_a_second_adapter_says_its_name():
    shapes = {name.replace("default", "poems"): shape for name, shape in LORA.items()}
    (site,) = adapters(shapes)
    assert site.name == "layers.0.q_proj.poems.lora"


def test_an_adapter_on_attention_does_not_hide_the_base():
    shapes = {
        "layers.0.self_attn.q_proj.base_layer.weight": (24, 10),
        "layers.0.self_attn.q_proj.lora_A.default.weight": (2, 10),
        "layers.0.self_attn.q_proj.lora_B.default.weight": (24, 2),
        "layers.0.self_attn.k_proj.weight": (8, 10),
        "layers.0.self_attn.v_proj.weight": (8, 10),
        "layers.0.self_attn.o_proj.weight": (10, 24),
    }
    config = {"model_type": "llama", "num_attention_heads": 6, "num_key_value_heads": 2}
    sites = find(shapes, config=config)
    assert {site.kind for site in sites} == {"qk", "ov", "lora"}
    assert sites["layers.0.qk"].parameters[0].endswith("q_proj.base_layer.weight")
    assert sites.unread == ()


FACTORIZED = {
    "blocks.3.up.factors.0": (8, 2),
    "blocks.3.up.factors.1": (2, 2),
    "blocks.3.up.factors.2": (2, 6),
    "blocks.3.up.bias": (8,),
    "stem.kernel_factors.0": (12, 1),
    "stem.kernel_factors.1": (1, 9),
}


def test_a_factorized_layer_is_one_product_of_all_its_factors():
    tensors = state(FACTORIZED)
    sites = find(tensors)
    assert [(site.name, site.kind, site.layer, site.shape) for site in sites] == [
        ("blocks.3.up.linear", "linear", 3, (8, 6)),
        ("stem.conv", "conv", None, (12, 9)),
    ]
    assert sites.unread == ()
    left, middle, right = (tensors[f"blocks.3.up.factors.{position}"] for position in range(3))
    product = sites["blocks.3.up.linear"].product(tensors)
    torch.testing.assert_close(product.dense(), left @ middle @ right)
    assert product.left.data_ptr() == left.data_ptr()


def test_a_factorized_layer_at_the_root_has_its_kind_for_a_name():
    assert [site.name for site in factorized({"factors.0": (4, 2), "factors.1": (2, 3)})] == ["linear"]


@pytest.mark.parametrize(
    "shapes",
    [
        {"a.factors.0": (4, 2)},
        {"a.factors.0": (4, 2), "a.factors.2": (2, 3)},
        {"a.factors.0": (4, 2), "a.factors.1": (3, 5)},
        {"a.factors.0": (4, 2), "a.factors.1": (2, 3, 1)},
        {"a.factors.left": (4, 2), "a.factors.right": (2, 3)},
        {"a.refactors.0": (4, 2), "a.refactors.1": (2, 3)},
    ],
)
def test_lists_that_do_not_multiply_from_end_to_end_are_none(shapes):
    assert factorized(shapes) == []


def test_tied_factors_are_one_site_and_a_factor_shared_alone_is_in_both():
    one, two, three = (torch.nn.Linear(5, 5, bias=False) for _ in range(3))
    for layer in (one, two, three):
        layer.weight = None
    shared = torch.nn.Parameter(torch.randn(5, 2))
    rights = [torch.nn.Parameter(torch.randn(2, 5)) for _ in range(2)]
    for layer, right in ((one, rights[0]), (two, rights[0]), (three, rights[1])):
        layer.factors = torch.nn.ParameterList([shared, right])
    sites = find(torch.nn.ModuleDict({"one": one, "two": two, "three": three}))
    assert sites.names == ("one.linear", "three.linear")


@pytest.mark.parametrize(
    ("name", "form"), [("cp_cores", "cp"), ("tucker_cores", "tucker"), ("tensor_train_cores", "tensor train")]
)
def test_cores_of_a_tensor_form_are_listed_and_never_read_as_matrices(name, form):
    sites = find({f"layers.0.up.{name}.{place}": (6, 4, 3) for place in range(2)} | {"layers.0.down.weight": (4, 6)})
    assert sites.names == ("layers.0.down.mlp",)
    assert [each.parameter for each in sites.unread] == [f"layers.0.up.{name}.{place}" for place in range(2)]
    assert all(each.reason.startswith(f"a core of a {form} form") for each in sites.unread)
