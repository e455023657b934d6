"""What a release certificate is filed under, and that nothing else is claimed."""

from __future__ import annotations

from rankwise.sites.certify.release import switches


def test_switches_are_what_may_change_the_formula() -> None:
    facts = switches(
        {
            "attention_bias": True,
            "attention_dropout": 0.0,
            "hidden_size": 64,
            "qk_layernorm": False,
            "mlp_bias": True,
            "attn_logit_softcapping": 50.0,
            "clip_qkv": 0,
            "attention_multiplier": 0.5,
            "pos_att_type": ["p2c", "c2p"],
            "attn_config": {"qk_ln": False, "clip_qkv": 8.0},
            "rope_parameters": {"rope_type": "yarn", "factor": 4},
        }
    )
    assert facts == {
        "attention_bias": True,
        "qk_layernorm": False,
        "attn_logit_softcapping": "given",
        "clip_qkv": None,
        "attention_multiplier": "given",
        "pos_att_type": ["c2p", "p2c"],
        "attn_config.qk_ln": False,
        "attn_config.clip_qkv": "given",
        "rope": "yarn",
    }


def test_kinds_of_rotary_embedding_that_only_change_angles_are_one() -> None:
    assert switches({"rope_scaling": {"type": "linear"}}) == {"rope": "angles"}
    assert switches({"rope_scaling": None, "rope_theta": 1e4}) == {"rope": "angles"}
    assert switches({"rope_parameters": {"rope_type": "yarn", "mscale_all_dim": 1.0}}) == {"rope": "yarn, scaled"}
    each = {"full_attention": {"rope_type": "longrope"}, "sliding_attention": {"rope_type": "default"}}
    assert switches({"rope_parameters": each}) == {"rope": "angles and longrope"}
