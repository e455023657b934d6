"""Small checkpoints on disk in the form of a Llama: grouped keys, a feed-forward layer, an embedding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
ATTENTION = {"q": (32, 24), "k": (16, 24), "v": (16, 24), "o": (24, 32)}


def llama(*, layers: int = 3, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The tensors of a model of width 24: 4 heads of size 8 that share 2 heads of keys and values."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"model.embed_tokens.weight": (90, 24)}
    for layer in range(layers):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.self_attn.{name}_proj.weight": shape for name, shape in ATTENTION.items()}
        shapes[f"{at}.mlp.up_proj.weight"] = (40, 24)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def attention(layer: int, name: str) -> str:
    """The name of a projection: q, k, v or o."""
    return f"model.layers.{layer}.self_attn.{name}_proj.weight"


def write(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None = CONFIG) -> Path:
    """A directory with one safetensors file and a configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_sharded(folder: Path, tensors: Mapping[str, Tensor], shards: int = 2) -> Path:
    """The same in several files with an index."""
    write(folder, tensors)
    (folder / "model.safetensors").unlink()
    names = list(tensors)
    places = {name: f"model-{at % shards + 1:05d}-of-{shards:05d}.safetensors" for at, name in enumerate(names)}
    for file in sorted(set(places.values())):
        save_file({name: tensors[name] for name in names if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def dense(tensors: Mapping[str, Tensor], layer: int) -> dict[str, Tensor]:
    """The attention products of a layer multiplied out in float64, a matrix for each head: an oracle."""
    query, key, value = (tensors[attention(layer, name)].double().unflatten(0, (-1, 8)) for name in "qkv")
    output = tensors[attention(layer, "o")].double().unflatten(1, (-1, 8)).movedim(1, 0)
    key, value = (each.repeat_interleave(len(query) // len(each), 0) for each in (key, value))
    return {f"layers.{layer}.qk": query.mT @ key, f"layers.{layer}.ov": output @ value}
