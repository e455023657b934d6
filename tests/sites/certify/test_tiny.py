"""Small models whose sizes all differ and whose parameters are all random."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rankwise.errors import UserError
from rankwise.sites.certify.tiny import (
    TinyError,
    attempts,
    known_types,
    model_types,
    randomized,
    tiny_config,
    tiny_models,
)


def test_the_first_sizes_are_pairwise_different() -> None:
    _, sizes = next(iter(attempts()))
    names = (
        "width",
        "heads",
        "groups",
        "head_size",
        "inner",
        "words",
        "query_rank",
        "key_rank",
        "turning",
        "value_size",
    )
    assert len({sizes[name] for name in names}) == len(names)
    assert sizes["width"] != sizes["heads"] * sizes["head_size"]
    assert sizes["heads"] % sizes["groups"] == 0


def test_a_configuration_is_small_without_dropout_and_takes_changes() -> None:
    _, sizes = next(iter(attempts()))
    config = tiny_config("llama", sizes, {"attention_bias": True})
    assert (config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (
        36,
        6,
        2,
        8,
    )
    assert config.num_hidden_layers == 2
    assert config.attention_dropout == 0.0
    assert config.attention_bias is True


def test_nested_configurations_are_small_too_and_take_what_they_declare() -> None:
    _, sizes = next(iter(attempts()))
    config = tiny_config("clip", sizes, {"attention_dropout": 0.25})
    assert config.text_config.hidden_size == config.vision_config.hidden_size == 48
    assert config.text_config.attention_dropout == 0.25
    assert config.vision_config.image_size < 224


def test_a_key_that_no_class_declares_is_set_all_the_same() -> None:
    _, sizes = next(iter(attempts()))
    assert tiny_config("deberta-v2", sizes, {"share_att_key": True}).share_att_key is True


def test_special_tokens_lie_inside_the_small_vocabulary() -> None:
    _, sizes = next(iter(attempts()))
    config = tiny_config("gpt2", sizes, {})
    assert config.vocab_size == 99
    assert config.eos_token_id < 99


def test_every_parameter_is_drawn_again() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Embedding(5, 2))
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    randomized(model)
    for name, parameter in model.named_parameters():
        assert (parameter != before[name]).all(), name
        assert (parameter != 0).all(), name
    assert not model.training
    assert torch.equal(randomized(nn.Linear(4, 3)).weight, randomized(nn.Linear(4, 3)).weight)


def test_ways_to_be_small_come_until_one_is_taken() -> None:
    labels = [label for label, _ in tiny_models("codegen")]
    assert labels
    assert "its own sizes" not in labels  # what is built small once is not built large


def test_a_type_that_does_not_build_says_why() -> None:
    with pytest.raises(TinyError, match=r"^'timm_backbone' does not build small: .*timm"):
        next(iter(tiny_models("timm_backbone")))


def test_parts_of_composite_models_are_found_beside_their_configuration() -> None:
    _, model = next(iter(tiny_models("musicgen_decoder")))
    assert type(model).__name__ == "MusicgenForCausalLM"


def test_unknown_types_are_refused_with_what_was_meant() -> None:
    assert len(model_types()) > 500
    assert known_types(["bert", "llama"]) == ["bert", "llama"]
    with pytest.raises(UserError, match=r"^transformers has no model type 'lama'; did you mean llama"):
        known_types(["bert", "lama"])
    with pytest.raises(UserError, match=r"no model type 'no\?such\?type': it has \d+, such as bert and llama"):
        known_types(["no\x1bsuch\x1btype"])
