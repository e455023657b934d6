"""What the configurations of some model types need besides small sizes."""

from __future__ import annotations

from typing import Any

PECULIAR: dict[str, dict[str, Any]] = {
    "audio-spectrogram-transformer": {"max_length": 48, "num_mel_bins": 32},
    "autoformer": {"prediction_length": 4},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 12, "mamba_d_head": 8},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "chameleon_vqgan": {"base_channels": 32, "channel_multiplier": [1, 2]},
    "codegen": {"rotary_dim": 4},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 1e4}},
    "donut-swin": {"image_size": [64, 64]},
    "emu3": {"vocabulary_map": {"<image>": 5}},
    "emu3_vqgan": {"base_channels": 32, "channel_multiplier": [1, 2]},
    "funnel": {"block_sizes": [1, 1], "block_repeats": [1, 1]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "gptj": {"rotary_dim": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "informer": {"prediction_length": 4},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "janus_vqgan": {"base_channels": 32, "channel_multiplier": [1, 2]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"num_layers": 1, "n_routed_experts": 4, "zero_expert_num": 2, "moe_topk": 2},
    "mobilebert": {"intra_bottleneck_size": 36},
    "swin": {"embed_dim": 24, "depths": [1, 2], "num_heads": [2, 3]},
    "time_series_transformer": {"prediction_length": 4},
}
"""Configuration keys by model type, each because the type's own default does not fit few layers or is not given."""
