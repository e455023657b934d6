"""Which configuration keys the code of a model type reads."""

from __future__ import annotations

import pytest

from rankwise.sites.certify.reading import homes, switches_read
from rankwise.sites.certify.release import is_switch


@pytest.mark.parametrize(
    ("model_type", "read", "not_read"),
    [
        ("deberta-v2", {"share_att_key", "position_buckets", "pos_att_type"}, {"rotary_value"}),
        ("gpt2", {"scale_attn_weights", "reorder_and_upcast_attn"}, {"attention_bias"}),
        # Checkpoints of these two say `scale_attn_weights`, which their code does not know.
        ("gptj", {"n_positions"}, {"scale_attn_weights", "rotary"}),
        ("codegen", {"n_positions"}, {"scale_attn_weights"}),
        ("bert", {"add_cross_attention"}, {"position_embedding_type"}),
        ("falcon", {"alibi", "multi_query", "new_decoder_architecture"}, {"attention_bias"}),
        ("llama", {"attention_bias"}, {"rope_interleaved", "qk_layernorm"}),
    ],
)
def test_what_the_code_names_is_read(model_type: str, read: set[str], not_read: set[str]) -> None:
    found = set(switches_read(model_type))
    assert read <= found
    assert not found & not_read
    assert all(map(is_switch, found))


def test_the_models_of_a_configuration_lie_beside_it() -> None:
    from transformers import CONFIG_MAPPING

    assert [home.__name__ for home in homes(CONFIG_MAPPING["bert"])] == ["transformers.models.bert.modeling_bert"]
