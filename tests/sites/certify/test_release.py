"""What a release certificate is filed under, and that nothing is claimed that was not proved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankwise.sites import registry
from rankwise.sites.certify import release
from rankwise.sites.certify.release import empty_table, fingerprint, is_switch, shipped, switches, unchanged
from rankwise.sites.certify.tables import markdown_table, shipped_lines
from rankwise.sites.certify.tiny import model_types
from rankwise.sites.certify.trial import attempt
from rankwise.sites.checkpoints import open_checkpoint
from rankwise.sites.find import find
from rankwise.sites.layout import Rotary
from rankwise.sites.registry import built_in, forget_layout, register_layout
from rankwise.sites.sites import Sites
from tests.sites.models import GPT2, LLAMA, gpt2_shapes, llama_shapes, state

SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.02,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 49152,
}
"""What the `config.json` of SmolLM2-135M says."""


def certified(sites: Sites) -> set[str]:
    """What the attention sites say of themselves."""
    found = {site.certified for site in sites if site.attention is not None}
    assert found, "no attention site was found"
    return found


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
    assert switches({"pos_att_type": "p2c|c2p"}) == switches({"pos_att_type": ["c2p", "p2c"]})


def test_kinds_of_rotary_embedding_that_only_change_angles_are_one() -> None:
    assert switches({"rope_scaling": {"type": "linear"}}) == {"rope": "angles"}
    assert switches({"rope_scaling": None, "rope_theta": 1e4}) == {"rope": "angles"}
    assert switches({"rope_parameters": {"rope_type": "yarn", "mscale_all_dim": 1.0}}) == {"rope": "yarn, scaled"}
    each = {"full_attention": {"rope_type": "longrope"}, "sliding_attention": {"rope_type": "default"}}
    assert switches({"rope_parameters": each}) == {"rope": "angles and longrope"}


@pytest.mark.parametrize(
    ("key", "switch"),
    [
        ("attention_bias", True),
        ("qk_norm_type", True),
        ("attn_output_gate", True),
        ("use_rotary_embedding", True),
        ("attention_dropout", False),
        ("num_attention_heads", False),
        ("sliding_window", False),
        ("mlp_bias", False),
        ("classifier_bias", False),
        ("_attn_implementation", False),
    ],
)
def test_names_that_decide_no_formula_are_no_switches(key: str, switch: bool) -> None:
    assert is_switch(key) is switch


def test_real_checkpoints_are_known(minilm_directory, antiberty_directory, rxnfp_directories) -> None:
    for directory in (minilm_directory, antiberty_directory, *rxnfp_directories.values()):
        with open_checkpoint(directory) as checkpoint:
            assert certified(find(checkpoint)) == {"release"}, directory


def test_a_configuration_without_a_type_is_read_by_its_keys_and_says_so(rxnfp_directories) -> None:
    with open_checkpoint(rxnfp_directories["pretrained"]) as checkpoint:
        site = find(checkpoint)["layers.0.qk"]
    assert site.attention is not None
    assert site.attention.model_type is None
    assert "the configuration names no model type: read as bert" in site.notes


def test_a_real_llama_is_known(stories15m_state) -> None:
    config, tensors = stories15m_state
    assert certified(find(tensors, config=config)) == {"release"}


def test_the_configuration_of_a_published_model_is_known() -> None:
    layer = "model.layers.0.self_attn"
    rows = {"q_proj": (576, 576), "k_proj": (192, 576), "v_proj": (192, 576), "o_proj": (576, 576)}
    shapes = {f"{layer}.{name}.weight": shape for name, shape in rows.items()}
    assert certified(find(shapes, config=SMOLLM2)) == {"release"}


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_table_knows_shapes_and_tensors_alike(name: str) -> None:
    shapes, config = {"llama": (llama_shapes(), LLAMA), "gpt2": (gpt2_shapes(), GPT2)}[name]
    assert certified(find(shapes, config=config)) == certified(find(state(shapes), config=config)) == {"release"}


@pytest.mark.parametrize(
    "change",
    [
        {"attention_bias": True},  # and no bias is there
        {"attention_bias": "yes"},
        {"rope_parameters": {"rope_type": "one that nobody proved", "rope_theta": 1e4}},
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
        {"model_type": "arcee-of-another-house"},
    ],
)
def test_a_configuration_that_was_not_proved_is_not_claimed(change: dict[str, Any]) -> None:
    sites = find(llama_shapes(), config={**LLAMA, **change})
    assert {site.certified for site in sites} == {"no"}


def test_what_no_code_of_the_type_reads_decides_nothing() -> None:
    legacy = {"attention_flavour": "spicy", "rope_interleaved": True, "qk_norm_of_a_fork": True, "attn_pdrop": 0.3}
    assert certified(find(llama_shapes(), config={**LLAMA, **legacy})) == {"release"}


@pytest.mark.parametrize(
    "extra",
    [
        {"layers.0.self_attn.q_norm.weight": (4,)},
        {"layers.0.self_attn.gate_proj.weight": (24, 10)},
        {"layers.0.self_attn.q_proj.bias": (24,)},
        {"layers.0.self_attn.sinks": (6,)},
    ],
)
def test_a_module_with_another_parameter_is_another_module(extra: dict[str, tuple[int, ...]]) -> None:
    sites = find(llama_shapes() | extra, config=LLAMA)
    assert {site.certified for site in sites if site.layer == 0} == {"no"}
    # In a model whose other layers have none of it, those are as they were proved.
    assert {sites[name].certified for name in ("layers.1.qk", "layers.1.ov")} == {"release"}


def test_masks_and_tables_of_old_checkpoints_do_not_matter() -> None:
    saved = {"h.0.attn.bias": (1, 1, 16, 16), "h.0.attn.masked_bias": (1, 1)}
    assert certified(find(gpt2_shapes() | saved, config=GPT2)) == {"release"}


def test_a_layout_of_ones_own_is_never_released_even_under_a_known_name() -> None:
    register_layout(
        """
        [llama]
        types = ["llama"]
        sizes = { g = "num_key_value_heads or num_attention_heads", q = "num_attention_heads // g" }
        [llama.attention.self]
        at = "layers.{layer}.self_attn"
        q = "q_proj: (g q r) d"
        k = "k_proj: (g r) d"
        v = "v_proj: (g r) d"
        o = "o_proj: d (g q r)"
        rotary = { pairs = "half" }
        """
    )
    try:
        assert certified(find(llama_shapes(), config=LLAMA)) == {"no"}
    finally:
        forget_layout("llama")
    assert certified(find(llama_shapes(), config=LLAMA)) == {"release"}


def test_inside_an_empty_table_nothing_is_proved() -> None:
    with empty_table():
        sites = find(llama_shapes(), config=LLAMA)
        assert certified(sites) == {"no"}
        assert all(site.attention.signature for site in sites if site.attention is not None)
    assert certified(find(llama_shapes(), config=LLAMA)) == {"release"}


@contextmanager
def changed_llama(**change: Any) -> Iterator[None]:
    """As if the built-in table had been edited after the release."""
    layouts, raw = built_in()
    edited = tuple(replace(each, **change) if each.name == "llama" else each for each in layouts)
    with pytest.MonkeyPatch.context() as patch:
        for page in (release, registry):
            patch.setattr(page, "built_in", lambda: (edited, raw))
        unchanged.cache_clear()
        yield
    unchanged.cache_clear()


def test_a_layout_that_was_changed_since_claims_nothing() -> None:
    (llama,) = (layout for layout in built_in()[0] if layout.name == "llama")
    block = llama.attention["self"]
    with changed_llama():
        assert certified(find(llama_shapes(), config=LLAMA)) == {"release"}
    with changed_llama(attention={**llama.attention, "self": replace(block, scale="r ** -1")}):
        assert certified(find(llama_shapes(), config=LLAMA)) == {"no"}


def test_words_and_more_types_are_no_change_of_a_layout() -> None:
    (llama,) = (layout for layout in built_in()[0] if layout.name == "llama")
    block = llama.attention["self"]
    noted = replace(
        llama, types=(*llama.types, "another"), attention={**llama.attention, "self": replace(block, notes=("so",))}
    )
    assert fingerprint(noted) == fingerprint(llama)
    changes: list[dict[str, Any]] = [
        {"attention": {**llama.attention, "self": replace(block, rotary=Rotary(pairs="interleaved"))}},
        {"attention": {**llama.attention, "self": replace(block, softcap="cap")}},
        {"attention": {"self": block}},
        {"sizes": {**llama.sizes, "g": "6"}},
        {"input_first": True},
    ]
    marks = {fingerprint(replace(llama, **change)) for change in changes}
    assert len(marks | {fingerprint(llama)}) == len(changes) + 1


def test_the_shipped_table_is_of_the_layouts_as_they_are() -> None:
    """After a change of a layout: `rankwise certify --release`, as CONTRIBUTING.md says."""
    assert unchanged() == {layout.name for layout in built_in()[0]}
    assert set(shipped()["layouts"]) == unchanged()


def test_the_shipped_table_has_types_enough_and_nothing_else() -> None:
    marks = [mark for row in shipped()["types"].values() for mark in row["proved"]]
    assert all(len(mark) == 16 for mark in marks)
    assert all(set(row) == {"defaults", "reads", "proved"} for row in shipped()["types"].values())
    assert sum(line.proved > 0 for line in shipped_lines()) >= 600
    assert all(line.detail for line in shipped_lines() if line.outcome not in ("all by value", "no attention"))


def test_the_page_of_the_documentation_is_what_ships() -> None:
    page = Path(__file__).parents[3] / "docs" / "certified.md"
    assert page.read_text(encoding="utf-8") == markdown_table(shipped_lines(), shipped()["transformers"])


def test_the_types_of_the_table_are_those_of_the_installed_library() -> None:
    transformers = pytest.importorskip("transformers")
    if transformers.__version__ != shipped()["transformers"]:
        pytest.skip(f"the release was made with transformers {shipped()['transformers']}")
    assert [line.model_type for line in shipped_lines()] == model_types()


# One of each way to differ: biases, fused, grouped, normalized, capped, latent, cross attention, relative positions,
# sinks, and architectures whose files name and order their weights otherwise than their modules.
PROVED = [
    *("bert", "gpt2", "falcon", "olmo2", "gemma2", "deepseek_v3", "t5", "deberta-v2", "vit", "bloom", "gpt_oss"),
    *("whisper", "gpt_neox", "clip", "phi3"),
]


@pytest.mark.slow
@pytest.mark.parametrize("model_type", PROVED)
def test_what_is_released_is_what_passes_here(model_type: str) -> None:
    certificates = attempt(model_type).certificates
    assert certificates
    assert certified(find(certificates.sites.source)) == {"release"}
