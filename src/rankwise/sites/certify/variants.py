"""The configurations of a type that the release proves one by one: its own, and each switch turned."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rankwise.errors import require
from rankwise.sites.certify.release import switches

# Together, as real checkpoints have them.
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
    "falcon": (
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        {"alibi": True, "multi_query": False, "bias": True, "parallel_attn": False},
        {"multi_query": False, "bias": True},
    ),
    "gpt_bigcode": ({"multi_query": False},),
    "stablelm": ({"use_qkv_bias": True, "qk_layernorm": True},),
    "qwen2": ({"use_sliding_window": True},),
}
_GROUPS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")


def variants(model_type: str) -> Iterator[dict[str, Any]]:
    """Configuration changes of a type, the empty one first."""
    transformers = require("transformers", extra="hf")
    yield {}
    yield from TOGETHER.get(model_type, ())
    try:
        config = transformers.CONFIG_MAPPING[model_type]()
    except Exception:
        return
    values = config.to_dict()
    facts = switches(values)
    for key, value in facts.items():
        if isinstance(value, bool) and isinstance(values.get(key), bool):
            yield {key: not value}
    if any(isinstance(values.get(key), int) for key in _GROUPS):
        key = next(key for key in _GROUPS if isinstance(values.get(key), int))
        yield {key: 6}
        yield {key: 1}
    for key, value in values.items():
        if re.search(r"attn_logit_softcap|attention_logit_cap", key):
            yield {key: None if value else 20.0}
        if key == "q_lora_rank" and value:
            yield {key: None}
    rope = values.get("rope_parameters")
    if isinstance(rope, dict) and "rope_type" in rope:
        share = rope.get("partial_rotary_factor")
        yield {"rope_parameters": {**rope, "partial_rotary_factor": 0.5 if share in (None, 1, 1.0) else 1.0}}
        yield {"rope_parameters": {**rope, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}
