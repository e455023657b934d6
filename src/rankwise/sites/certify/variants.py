"""The configurations of a type that the release proves one by one: its own, and its switches turned, together too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import combinations, product
from typing import Any

from rankwise.errors import require
from rankwise.sites.certify.release import switches
from rankwise.sites.certify.tiny import HEADS

# Whoever has more switches than fit is proved with the fewest of them turned; more of them together where it belongs to
# the families that most checkpoints are of.
MOST, MOST_OF_THE_WELL_KNOWN = 8, 64
_WELL_KNOWN = """
    gpt2 gpt_neo gptj gpt_neox gpt_bigcode opt bloom falcon mpt codegen llama mistral mixtral qwen2 qwen2_moe qwen2_vl
    qwen3 qwen3_moe gemma gemma2 gemma3_text gemma3 phi phi3 glm cohere cohere2 olmo olmo2 stablelm starcoder2 granite
    nemotron persimmon gpt_oss deepseek_v2 deepseek_v3 bert roberta xlm-roberta camembert electra distilbert albert
    mobilebert mpnet esm deberta deberta-v2 modernbert t5 mt5 bart mbart marian pegasus whisper wav2vec2 hubert vit deit
    beit dinov2 dinov3_vit vit_mae clip clip_text_model clip_vision_model siglip siglip_text_model siglip_vision_model
    siglip2 blip blip_text_model blip_vision_model llava
"""
WELL_KNOWN = frozenset(_WELL_KNOWN.split())
_GROUPS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
_UNTOUCHED = 1e4  # a clip or a cap that nothing reaches

# Keys that no switch of the defaults leads to, as well-known checkpoints have them.
TOGETHER: dict[str, tuple[dict[str, Any], ...]] = {
    "deberta": ({"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False},),
    "deberta-v2": (
        {
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_buckets": 256,
        },
    ),
    "esm": (
        {"position_embedding_type": "rotary", "emb_layer_norm_before": False},
        {"position_embedding_type": "absolute", "emb_layer_norm_before": False},
        {"position_embedding_type": "absolute", "emb_layer_norm_before": True},
    ),
    "falcon": ({"new_decoder_architecture": True, "num_kv_heads": 2},),
    "mpt": ({"attn_config": {"clip_qkv": _UNTOUCHED}},),
    "phi3": ({"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.5] * 4}},),
}


def variants(model_type: str) -> Iterator[dict[str, Any]]:
    """Configuration changes of a type, the empty one first, then those that turn one switch, two, and so on.

    Arguments:
        model_type: a model type of transformers.
    """
    transformers = require("transformers", extra="hf")
    yield {}
    yield from TOGETHER.get(model_type, ())
    try:
        values = transformers.CONFIG_MAPPING[model_type]().to_dict()
    except Exception:
        return  # no configuration of its own without arguments
    turns = list(_turns(values))
    count = MOST_OF_THE_WELL_KNOWN if model_type in WELL_KNOWN else MOST
    for turned in range(1, len(turns) + 1):
        for chosen in combinations(turns, turned):
            for choice in product(*chosen):
                if not (count := count - 1):
                    return
                yield {key: value for change in choice for key, value in change.items()}


def _turns(values: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """For each switch of a configuration the changes that turn it, of which one excludes the others."""
    for key in switches(values):
        value = values.get(key)
        if key == "add_cross_attention":
            yield [{key: True, "is_decoder": True}]
        elif isinstance(value, bool):
            yield [{key: not value}]
        elif re.search(r"softcap|logit_cap|^clip_qkv", key):
            yield [{key: None if value else _UNTOUCHED}]
    for key in _GROUPS:
        if isinstance(values.get(key), int):
            yield [{key: HEADS}, {key: 1}]
    if values.get("q_lora_rank"):
        yield [{"q_lora_rank": None}]
    rope = values.get("rope_parameters")
    if isinstance(rope, Mapping) and "rope_type" in rope:
        share = rope.get("partial_rotary_factor")
        yarn = {**rope, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
        turned = [{**rope, "partial_rotary_factor": 0.5 if share in (None, 1, 1.0) else 1.0}, yarn]
        if values.get("kv_lora_rank"):
            turned.append({**yarn, "mscale": 1.0, "mscale_all_dim": 1.0})
        yield [{"rope_parameters": each} for each in turned]
