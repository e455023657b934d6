"""Which configuration governs which part of a composite model, from a live module and from config.json alone."""

from __future__ import annotations

import torch
from torch import nn

from rankwise.sites.find import find
from rankwise.sites.roots import Attributes, Root, config_roots, module_roots, owner
from tests.sites.models import GPT2, LLAMA, Config, Tree, gpt2_shapes, llama_shapes, state

TEXT = {**LLAMA, "model_type": "llama"}
VISION = {**GPT2, "model_type": "gpt2"}
COMPOSITE = {"model_type": "seer", "text_config": TEXT, "vision_config": VISION}


def composite() -> nn.Module:
    model = Tree({"projector.weight": torch.randn(10, 15, dtype=torch.float64)}, COMPOSITE)
    model.add_module("language_model", Tree(state(llama_shapes()), TEXT))
    model.add_module("vision_tower", Tree(state(gpt2_shapes()), VISION))
    return model


def test_a_plain_configuration_is_one_root():
    (root,) = config_roots(LLAMA)
    assert (root.prefix, root.stack, root.type) == ("", "", "llama")
    assert root.owns("anything.at.all")
    assert config_roots(None) == config_roots({}) == []


def test_nested_configurations_own_the_names_that_hint_at_them():
    roots = config_roots(COMPOSITE)
    assert owner(roots, "model.vision_tower.h.0.attn").type == "gpt2"
    assert owner(roots, "visual.h.0.attn").type == "gpt2"
    assert owner(roots, "model.language_model.layers.0.self_attn").type == "llama"
    # What no part claims is the text model's, because the wrapper has no attention of its own.
    assert owner(roots, "model.layers.0.self_attn").type == "llama"


def test_a_wrapper_with_attention_of_its_own_keeps_it():
    roots = config_roots({**LLAMA, "vision_config": VISION, "text_config": {**GPT2}})
    assert owner(roots, "layers.0.self_attn").type == "llama"
    assert owner(roots, "text_model.h.0.attn").type == "gpt2"


def test_settings_that_end_in_config_but_name_no_model_are_no_root():
    assert (
        len(config_roots({**LLAMA, "attn_config": {"model_type": "", "clip": 3}, "quantization_config": {"bits": 4}}))
        == 1
    )


def test_a_live_composite_has_a_root_for_each_part():
    roots = module_roots(composite())
    assert [(root.prefix, root.type, root.stack) for root in roots] == [
        ("", "seer", ""),
        ("language_model", "llama", "text"),
        ("vision_tower", "gpt2", "vision"),
    ]
    assert owner(roots, "vision_tower.h.0.attn").type == "gpt2"
    assert owner(roots, "vision_tower_adapter.h.0").type == "seer"


def test_a_part_that_shares_its_parents_configuration_is_no_root():
    model = Tree({}, LLAMA)
    inner = Tree(state(llama_shapes()))
    inner.config = model.config
    model.add_module("model", inner)
    assert [root.prefix for root in module_roots(model)] == [""]


def test_a_wrapper_without_configuration_is_looked_through():
    wrapper = nn.Module()
    wrapper.add_module("module", Tree(state(llama_shapes()), LLAMA))
    (root,) = module_roots(wrapper)
    assert (root.prefix, root.stack) == ("module", "")


def test_every_tensor_of_a_composite_is_read_by_its_own_part():
    model = composite()
    live = find(model)
    stacks = {site.stack: site.layout for site in live if site.attention is not None}
    assert stacks == {"text": "llama", "vision": "gpt2"}
    assert live["vision.layers.1.qk"].batch == (("h", 3),)
    assert live["text.layers.1.ov"].batch == (("g", 2), ("q", 3))
    assert live.unread == ()
    assert "projector.matrix" in live


def test_attributes_are_what_an_expression_may_name_of_a_module():
    module = nn.Linear(3, 4)
    module.heads = 3
    module.add_module("norm", nn.LayerNorm(4))
    values = Attributes(module)
    assert values["heads"] == 3
    assert values["weight"] is True
    assert values["norm"]["class"] == "LayerNorm"
    assert "forward" not in values
    assert "absent" not in values
    assert {"in_features", "out_features", "heads", "weight", "bias", "norm"} <= set(values)
    assert len(values) == len(set(values))


def test_hints_are_looked_for_in_every_component():
    root = Root("", VISION, "vision", ("vision", "visual"))
    assert root.owns("model.visual.blocks.0")
    assert not root.owns("model.language_model.blocks.0")
    assert Config(VISION).to_dict() == VISION
