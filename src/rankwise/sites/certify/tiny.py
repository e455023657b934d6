"""Small random models of transformers' types, whose sizes all differ: equal sizes hide transposes."""

from __future__ import annotations

import difflib
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from rankwise.errors import UserError, require
from rankwise.sites.certify.peculiar import PECULIAR
from rankwise.sites.certify.reading import homes
from rankwise.text import printable

HEADS, GROUPS, HEAD_SIZE, LAYERS, WORDS = 6, 2, 8, 2, 99
_MOST_PARAMETERS = 150_000_000

# The first pattern that fits a key gives its value; keys that none fits keep their default.
_NAMES: tuple[tuple[str, str], ...] = (
    (
        r"(hidden_size|d_model|n_embd|emb_dim|embed_dim|n_embed|hidden_dim|dim|width|embedding_size|(encoder|decoder)_embed_dim)",
        "width",
    ),
    (r"(text_|vision_|audio_)?(encoder_|decoder_)?(hidden_size|embed_dim)", "width"),
    (r"(vision|encoder|cross_attention|mm|language|text|audio|qformer|backbone)_hidden_size", "width"),
    (r"hidden_size_(global|per_layer_input)", "width"),
    (r"(output_dim|out_hidden_size|hidden_sizes_out|adapter_input_size|adapter_in_dim)", "width"),
    (r"(num_|n_)?(encoder_|decoder_)?(self_|cross_)?(attention_|attn_)?heads?", "heads"),
    (r"(((en|de)coder_)?num_attention_heads|n_head|num_attn_heads|attention_heads)", "heads"),
    (
        r"(num_key_value_heads|num_kv_heads|n_kv_heads|multi_query_group_num|(encoder|decoder)_num_key_value_heads)",
        "groups",
    ),
    (r"(head_dim|d_kv|attention_head_size|head_size|attention_head_dim|kv_channels|d_head)", "head_size"),
    (
        r"((encoder_|decoder_|moe_|shared_expert_|dense_)?(intermediate_size|ffn_dim|ffn_size|mlp_dim)|d_ff|n_inner|d_inner|intermediate_dim)",
        "inner",
    ),
    (r"(moe_shared_expert_intermediate_size|shared_intermediate_size|(expert_)?ffn_hidden_size)", "inner"),
    (r"(num_|n_)?(encoder_|decoder_|hidden_|text_|transformer_)?(layers?|blocks)|depth", "layers"),
    (r"((en|de)coder_)?num_hidden_layers", "layers"),
    (r"((text_|entity_)?vocab_size|n_vocab|vocab_size_per_layer_input|encoder_hash_byte_group_vocab)", "words"),
    (r"(num_experts|n_routed_experts|num_local_experts|moe_num_experts|n_experts)", "experts"),
    (r"(num_experts_per_tok|num_experts_per_token|moe_k|moe_topk|top_k_experts)", "chosen"),
    (r"(n_group|topk_group|num_expert_group|moe_num_shared_experts|n_shared_experts)", "one"),
    (r"q_lora_rank", "query_rank"),
    (r"kv_lora_rank", "key_rank"),
    (r"qk_nope_head_dim", "still"),
    (r"qk_rope_head_dim", "turning"),
    (r"v_head_dim", "value_size"),
    (r"(pretrain_)?image_size", "image"),
    (r"max_source_positions", "sounds"),
    (r"window_size", "window"),
    (r"(first_k_dense_replace|mtp_num_layers|num_nextn_predict_layers)", "zero"),
)
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_PATTERNS = [(re.compile(pattern), name) for pattern, name in _NAMES]


class TinyError(UserError):
    """A model type does not build small: the text says what its code answered."""


def _sizes(head_size: int, *, separate: bool, heads: int = HEADS, groups: int = GROUPS) -> dict[str, int]:
    """Sizes for the names above; with `separate` the width is not heads times head size.

    Widths are multiples of four, which kernels for experts ask for.
    """
    width = heads * (head_size - 2) if separate else heads * head_size
    return {
        **{
            "width": width,
            "heads": heads,
            "groups": groups,
            "head_size": head_size,
            "inner": width + 8,
            "layers": LAYERS,
        },
        **{
            "words": WORDS,
            "experts": 4,
            "chosen": 2,
            "one": 1,
            "query_rank": 14,
            "key_rank": 18,
            "still": 8,
            "turning": 4,
        },
        **{"value_size": 10, "image": 32, "sounds": 24, "window": 2, "zero": 0},
    }


def attempts() -> Iterator[tuple[str, dict[str, int]]]:
    """Ways to make a configuration small, the most telling first: later ones for types that accept no earlier."""
    yield "a width that is not heads times head size", _sizes(HEAD_SIZE, separate=True)
    yield "grouped keys", _sizes(HEAD_SIZE, separate=False)
    yield "a head size of 12", _sizes(12, separate=False)
    yield "as many keys as heads", _sizes(HEAD_SIZE, separate=False, groups=HEADS)
    yield "a head size of 16", _sizes(16, separate=False, groups=HEADS)
    yield "four heads of 16", _sizes(16, separate=False, heads=4, groups=2)
    yield "four heads of 32", _sizes(32, separate=False, heads=4, groups=4)
    yield "four heads of 64", _sizes(64, separate=False, heads=4, groups=2)
    yield "four heads of 128", _sizes(128, separate=False, heads=4, groups=2)
    yield "its own sizes, with few layers", {"layers": LAYERS, "image": 64}
    yield "its own sizes", {}


def model_types() -> list[str]:
    """Every model type that the installed transformers can build from a configuration alone."""
    transformers = require("transformers", extra="hf")
    return sorted(transformers.CONFIG_MAPPING.keys())


def known_types(types: Sequence[str]) -> list[str]:
    """The types, all of which transformers must have."""
    known = model_types()
    for unknown in (each for each in types if each not in known):
        near = difflib.get_close_matches(unknown, known, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else f": it has {len(known)}, such as bert and llama"
        raise UserError(f"transformers has no model type '{printable(unknown)}'{hint}")
    return list(types)


def tiny_models(
    model_type: str, changes: Mapping[str, Any] | None = None, *, seed: int = 0
) -> Iterator[tuple[str, nn.Module]]:
    """Small models of a type with every parameter random, one for each way to make it small that builds.

    Arguments:
        model_type: a model type of transformers.
        changes: configuration keys to set beside the sizes.
        seed: of the random parameters.
    """
    transformers = require("transformers", extra="hf")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    reasons: list[str] = []
    built = False
    for label, sizes in attempts():
        if built and "width" not in sizes:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                config = tiny_config(model_type, sizes, changes or {})
                build = _builder(config)
                if (count := _parameters(build)) > _MOST_PARAMETERS:
                    reasons.append(f"{count} parameters are too many")
                    continue
                model = build()
        except Exception as error:
            reasons.append(f"{type(error).__name__}: {' '.join(str(error).split())}"[:200])
            continue
        built = True
        yield label, randomized(model, seed)
    if not built:
        raise TinyError(
            f"'{model_type}' does not build small: {'; at last '.join(dict.fromkeys((reasons[0], reasons[-1])))}"
        )


def large_model(model_type: str) -> nn.Module:
    """The model of a type as it is by default, on the meta device: names and shapes without memory for numbers."""
    kind = require("transformers", extra="hf").CONFIG_MAPPING[model_type]
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        return _builder(kind())()


def _builder(config: Any) -> Callable[[], nn.Module]:
    """What builds the base model of a configuration.

    Parts of composite models are in no automatic table: of the models beside their configuration the largest is taken.
    """
    transformers = require("transformers", extra="hf")
    kind = type(config)
    if kind in transformers.MODEL_MAPPING:
        return lambda: transformers.AutoModel.from_config(config)
    models = [
        each
        for home in homes(kind)
        for each in vars(home).values()
        if isinstance(each, type)
        and issubclass(each, transformers.PreTrainedModel)
        and each.__module__ == home.__name__
        and getattr(each, "config_class", None) is kind
        and not each.__name__.endswith("PreTrainedModel")
    ]
    if not models:
        raise TinyError(f"transformers has no model for {kind.__name__}")
    sizes: dict[int, Any] = {}
    problem: Exception | None = None
    for each in models:
        try:
            sizes.setdefault(_parameters(lambda each=each: each._from_config(config)), each)
        except Exception as error:
            problem = problem or error
    if not sizes:
        assert problem is not None
        raise problem
    return lambda: sizes[max(sizes)]._from_config(config)


def _parameters(build: Callable[[], nn.Module]) -> int:
    """How many parameters a model has, built without memory for them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build().parameters())


def tiny_config(model_type: str, sizes: Mapping[str, int], changes: Mapping[str, Any]) -> Any:
    """A configuration of a type with its sizes made small, nested ones too, and without dropout."""
    transformers = require("transformers", extra="hf")
    kind = transformers.CONFIG_MAPPING[model_type]
    # A key that no class declares may be read all the same, where a model asks for it with a default of its own.
    undeclared = {key: value for key, value in changes.items() if not _declares(kind(), key)}
    return kind(**{**_small(kind(), sizes, changes), **undeclared})


def randomized(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draw every parameter at random, gains, biases and sinks too: zeros and ones would hide what is dropped.

    What no training changes stays: tables of sines and cosines.
    """
    generator = torch.Generator().manual_seed(seed)
    model = model.float().eval()
    for parameter in model.parameters():
        if not parameter.is_floating_point() or not parameter.requires_grad:
            continue
        size = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.5
        parameter.data.copy_(size * torch.randn(parameter.shape, generator=generator))
    return model


def _small(config: Any, sizes: Mapping[str, int], changes: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    sizes = _latent(config, _with_width(config, sizes))
    types = _read(config, "layer_types")
    kinds = list(dict.fromkeys(types)) if types else []
    layers = max(LAYERS, len(kinds))
    many = next((each for key in _LAYERS if isinstance(each := _read(config, key), int)), None)
    for key in vars(config) | config.to_dict():
        if key.startswith("_") or key in ("model_type", "transformers_version") or _computed(config, key):
            continue
        value = _read(config, key)
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            values[key] = {**_small(value, sizes, changes), "model_type": value.model_type}
            continue
        small = _value(key, value, sizes, _read(config, "patch_size"))
        if small is not None:
            values[key] = layers if small == LAYERS and kinds and key in ("num_hidden_layers", "n_layer") else small
        elif isinstance(value, list) and len(value) == many and "layers" in sizes and key != "layer_types":
            values[key] = (list(dict.fromkeys(value)) + value)[:layers] if isinstance(value[0], str) else value[:layers]
        elif "dropout" in key or key.endswith(("_drop", "pdrop", "drop_rate", "drop_path_rate", "layerdrop")):
            values[key] = 0.0 if isinstance(value, float) else value
    if kinds and "layers" in sizes and not _computed(config, "layer_types"):
        values["layer_types"] = (kinds + [kinds[-1]] * layers)[:layers]
    if "vocab_size" in values:
        _small_tokens(config, values)
    values |= PECULIAR.get(config.model_type, {})
    values |= {key: value for key, value in changes.items() if _takes(config, key)}
    return values


def _takes(config: Any, key: str) -> bool:
    return hasattr(config, key) or key in inspect.signature(type(config).__init__).parameters


def _declares(config: Any, key: str) -> bool:
    """Whether a configuration, or one nested in it, has a key."""
    inner = [value for value in vars(config).values() if hasattr(value, "to_dict") and hasattr(value, "model_type")]
    return _takes(config, key) or any(_declares(each, key) for each in inner)


def _read(config: Any, key: str) -> Any:
    """A value of a configuration; None too where it differs by layer, which the class refuses to say for all."""
    try:
        return getattr(config, key, None)
    except Exception:
        return None


def _computed(config: Any, key: str) -> bool:
    """Whether the configuration's class computes a value, so that it cannot be given."""
    key = getattr(type(config), "attribute_map", {}).get(key, key)
    return isinstance(getattr(type(config), key, None), property)


def _with_width(config: Any, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """A width of its own only where the configuration names the head size: elsewhere the width sets it."""
    names = {name for key in config.to_dict() for pattern, name in _PATTERNS if pattern.fullmatch(key)}
    if "width" not in sizes or names & {"head_size", "still"}:
        return sizes
    return {**sizes, "width": sizes["heads"] * sizes["head_size"]}


def _latent(config: Any, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """Latent attention has a key for each head, and calls the part of a head that turns its head size."""
    if _read(config, "qk_rope_head_dim") is None or "heads" not in sizes:
        return sizes
    head_size = sizes["turning"]
    if _read(config, "head_dim") != config.qk_rope_head_dim:
        head_size += sizes["still"]
    return {**sizes, "groups": sizes["heads"], "head_size": head_size}


def _value(key: str, value: Any, sizes: Mapping[str, int], patch: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) == 2 and key == "image_size":
        return [_value(key, each, sizes, patch) for each in value]
    if isinstance(value, bool) or not isinstance(value, int | None):
        return None
    name = next((name for pattern, name in _PATTERNS if pattern.fullmatch(key)), None)
    if name is None or name not in sizes:
        return None
    if value is None and name not in ("head_size", "groups", "words", "experts"):
        return None
    if name == "image":
        patch = patch[0] if isinstance(patch, list | tuple) else patch
        return max(sizes[name], 3 * patch) if isinstance(patch, int) else sizes[name]
    return sizes[name]


def _small_tokens(config: Any, values: dict[str, Any]) -> None:
    """Special tokens must lie inside the small vocabulary, each its own."""
    words = values["vocab_size"]
    fresh = iter(range(words - 1, 0, -1))
    for key in config.to_dict():
        value = _read(config, key)
        if (
            re.search(r"token|_id|_index$", key)
            and isinstance(value, int)
            and not isinstance(value, bool)
            and value >= words
        ):
            values[key] = next(fresh)
