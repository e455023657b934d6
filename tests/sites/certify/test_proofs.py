"""Real modules of ten architectures pass both proofs, at float64 precision, for the reason that their layout says."""

from __future__ import annotations

import pytest

from rankwise.sites.certify.trial import attempt

# What each one adds: fused, neighbouring pairs, partial rotary, grouped keys, norms, caps, latents, relative positions.
EXACT = {
    "gpt2": "",
    "bert": "",
    "llama": "rotary",
    "gpt_neox": "rotary",
    "gptj": "rotary",
    "bloom": "beside terms that the streams do not enter",
    "t5": "",
    "gemma2": "rotary",
    "qwen3": "rotary",
    "deepseek_v3": "rotary",
}


@pytest.mark.parametrize("model_type", EXACT)
def test_every_site_of_the_type_passes(model_type: str) -> None:
    trial = attempt(model_type)
    assert trial.certificates, trial.certificates.failures if trial.certificates is not None else trial.reason
    errors = {name: each.value.error for name, each in trial.certificates.items()}
    # Float32 norms and rotary tables inside the libraries are what is left; nothing comes near the tolerance.
    assert max(error for error in errors.values() if error is not None) < 1e-6
    details = {each.value.detail for name, each in trial.certificates.items() if name.endswith("qk")}
    assert any(EXACT[model_type] in detail for detail in details)


def test_the_gauge_of_rotary_queries_is_one_turn_and_stretch_for_each_pair() -> None:
    certificates = attempt("llama").certificates
    assert certificates is not None
    assert certificates["layers.0.qk"].gauge.detail == "per rotary pair"
    assert certificates["layers.0.ov"].gauge.detail == "GL(8)"


def test_normalized_queries_have_no_gauge_and_say_so() -> None:
    certificates = attempt("qwen3").certificates
    assert certificates is not None
    assert certificates["layers.0.qk"].gauge.status == "absent"
    assert "normalized" in certificates["layers.0.qk"].gauge.detail
    assert certificates["layers.0.qk"].passed


def test_relative_positions_are_taken_out_by_the_second_difference() -> None:
    relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "share_att_key": True}
    trial = attempt("deberta-v2", relative)
    assert trial.certificates, trial.reason
    value = trial.certificates["layers.0.qk"].value
    assert "one token and its offset" in value.detail
    # Such logits cannot show the query's bias: the gauge, which moves biases too, must close that.
    assert value.partial
    assert trial.certificates["layers.0.qk"].gauge.status == "passed"


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_logits_are_seen_in_either_implementation(implementation: str) -> None:
    trial = attempt("llama", {"attn_implementation": implementation})
    assert trial.certificates, trial.reason


def test_yarn_shows_as_the_attention_factor_that_it_is() -> None:
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
    trial = attempt("llama", {"rope_parameters": rope})
    assert trial.certificates, trial.reason
    assert "times its attention factor 1.29" in trial.certificates["layers.0.qk"].value.detail
