"""What the configurations of some model types need besides small sizes."""

from __future__ import annotations

from typing import Any

PECULIAR: dict[str, dict[str, Any]] = {
    "autoformer": {"prediction_length": 4},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 12, "mamba_d_head": 8},
    "codegen": {"rotary_dim": 4},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "funnel": {"block_sizes": [1, 1], "block_repeats": [1, 1]},
    "gptj": {"rotary_dim": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "informer": {"prediction_length": 4},
    "mobilebert": {"intra_bottleneck_size": 36},
    "time_series_transformer": {"prediction_length": 4},
}
"""Configuration keys by model type, each because the type's own default does not fit few layers or is not given."""
