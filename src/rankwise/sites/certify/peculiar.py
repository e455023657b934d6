"""What the configurations of some model types need besides small sizes."""

from __future__ import annotations

from typing import Any

_STAGES: dict[str, Any] = {
    "embedding_size": 8,
    "hidden_sizes": [8, 12, 16, 20],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
}
_RESNET = {"model_type": "resnet", "out_features": ["stage4"], **_STAGES}
# Their default backbone comes from another library.
_WITHOUT_TIMM = {
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "backbone_config": _RESNET,
}
_THREE_STAGES = {**_STAGES, "out_features": ["stage2", "stage3", "stage4"]}
_HGNET: dict[str, Any] = {
    "model_type": "hgnet_v2",
    "out_features": ["stage2", "stage3", "stage4"],
    "stem_channels": [3, 8, 8],
    "stage_in_channels": [8, 8, 12, 16],
    "stage_mid_channels": [8, 8, 8, 8],
    "stage_out_channels": [8, 12, 16, 20],
    "stage_numb_of_layers": [1, 1, 1, 1],
}
_SWIN: dict[str, Any] = {
    "model_type": "swin",
    "embed_dim": 24,
    "depths": [1, 1, 1, 1],
    "num_heads": [2, 3, 4, 6],
    "window_size": 2,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
_ANGLES = {"rope_type": "default", "rope_theta": 10000.0}
_RT_DETR = {
    "encoder_hidden_dim": 36,
    "encoder_in_channels": [12, 16, 20],
    "decoder_in_channels": [36, 36, 36],
    "backbone_config": {"model_type": "rt_detr_resnet", **_THREE_STAGES},
}

PECULIAR: dict[str, dict[str, Any]] = {
    "audio-spectrogram-transformer": {"max_length": 48, "num_mel_bins": 32},
    "autoformer": {"prediction_length": 4},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 12, "mamba_d_head": 8},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "chameleon_vqgan": {"base_channels": 32, "channel_multiplier": [1, 2]},
    "clvp_encoder": {"hidden_size": 192, "projection_dim": 48},
    "codegen": {"rotary_dim": 4},
    "cohere_compass_text": {"rope_parameters": {"full_attention": None, "sliding_attention": _ANGLES}},
    "conditional_detr": _WITHOUT_TIMM,
    "d_fine": {
        "encoder_hidden_dim": 36,
        "encoder_in_channels": [12, 16, 20],
        "decoder_in_channels": [36, 36, 36],
        "backbone_config": _HGNET,
    },
    "dab-detr": _WITHOUT_TIMM,
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 1e4}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "deepseek_ocr2_text": {
        "mlp_layer_types": ["dense", "sparse"],
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 20,
    },
    "deformable_detr": {**_WITHOUT_TIMM, "backbone_config": {"model_type": "resnet", **_THREE_STAGES}},
    "detr": _WITHOUT_TIMM,
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 20},
    "donut-swin": {"image_size": [64, 64]},
    "dots1": {"moe_intermediate_size": 20, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note_text": {"per_layer_config": {}},
    "dots3_note_vision_encoder": {"per_layer_config": {}, "mlp_layer_types": ["dense", "sparse"]},
    "emu3": {"vocabulary_map": {"<image>": 5}},
    "emu3_vqgan": {"base_channels": 32, "channel_multiplier": [1, 2]},
    "eomt_dinov3": {"num_queries": 3, "num_register_tokens": 1},
    "fun_asr_nano": {"adaptor_config": {"hidden_size": 48, "intermediate_size": 12, "num_attention_heads": 6}},
    "funnel": {"architectures": ["FunnelModel"], "block_sizes": [1, 1], "block_repeats": [1, 1]},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "intermediate_size": [44] * 4,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "glm5_next_text": {"qk_rope_head_dim": 0, "index_topk": 16},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "gptj": {"rotary_dim": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "informer": {"prediction_length": 4},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "janus_vqgan": {"base_channels": 32, "channel_multiplier": [1, 2]},
    "layoutlmv3": {"coordinate_size": 8, "shape_size": 8, "input_size": 48},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"num_layers": 1, "n_routed_experts": 4, "zero_expert_num": 2, "moe_topk": 2},
    "lxmert": {"visual_feat_dim": 20},
    "maskformer": {"backbone_config": _SWIN},
    "mimi": {"num_filters": 4, "upsample_groups": 4},
    "mobilebert": {"intra_bottleneck_size": 36},
    "molmo2_adapter": {"vision_feature_layer": [-1, -2]},
    "moonshine": {"rope_parameters": {**_ANGLES, "partial_rotary_factor": 0.5}},
    "moonshine_streaming": {"num_key_value_heads": 6},
    "muse_spark_audio": {"num_hidden_layers": 4, "hidden_sizes": [8, 12, 16, 20], "depths": [1, 1, 1, 1]},
    "perceiver": {"d_latents": 48, "num_latents": 5, "num_self_attends_per_block": 1},
    "pix2struct_text_model": {"initializer_range": 0.02},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 20},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "radio": {"video_temporal_patch_size": 2},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "rt_detr": _RT_DETR,
    "rt_detr_v2": _RT_DETR,
    "swin": {"embed_dim": 24, "depths": [1, 2], "num_heads": [2, 3]},
    "table-transformer": _WITHOUT_TIMM,
    "time_series_transformer": {"prediction_length": 4},
}
"""Configuration keys by model type, each because the type's own default does not fit few layers or is not given."""
