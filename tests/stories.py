"""The stories15M checkpoint, read from its flat binary file into the names and layout of a Llama state dict."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import torch
from einops import rearrange
from torch import Tensor

HEADER = struct.Struct("<7i")


@dataclass(frozen=True)
class Shape:
    """The header of the file: seven 32-bit integers."""

    width: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int
    positions: int

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def config(self) -> dict[str, object]:
        """What `config.json` of the same model would say."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.width,
            "intermediate_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_heads,
            "head_dim": self.head_width,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.positions,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
        }


def read(path: Path) -> tuple[Shape, dict[str, Tensor]]:
    """The stacks of the file, each with its layers first, queries and keys still in interleaved rotary order."""
    with path.open("rb") as file:
        shape = Shape(*HEADER.unpack(file.read(HEADER.size)))
        width, hidden, layers, keys = shape.width, shape.hidden, shape.layers, shape.key_heads * shape.head_width
        sizes = {
            "embedding": (shape.vocabulary, width),
            "attention_norm": (layers, width),
            "query": (layers, width, width),
            "key": (layers, keys, width),
            "value": (layers, keys, width),
            "output": (layers, width, width),
            "feedforward_norm": (layers, width),
            "gate": (layers, hidden, width),
            "down": (layers, width, hidden),
            "up": (layers, hidden, width),
            "final_norm": (width,),
        }
        stacks = {}
        for name, size in sizes.items():
            data = bytearray(file.read(4 * math.prod(size)))
            stacks[name] = torch.frombuffer(data, dtype=torch.float32).reshape(size)
    return shape, stacks


def llama_state(path: Path) -> tuple[dict[str, object], dict[str, Tensor]]:
    """The config and the state dict as a Llama of the transformers library names and orders them.

    That library rotates the first half of a head against the second, the file its even rows against its odd ones: the
    rows of queries and keys are moved, which changes no logit.
    """
    shape, stacks = read(path)
    halves = {
        name: rearrange(stacks[name], "l (h p two) d -> l (h two p) d", two=2, p=shape.head_width // 2)
        for name in ("query", "key")
    }
    per_layer = {
        "input_layernorm": stacks["attention_norm"],
        "self_attn.q_proj": halves["query"],
        "self_attn.k_proj": halves["key"],
        "self_attn.v_proj": stacks["value"],
        "self_attn.o_proj": stacks["output"],
        "post_attention_layernorm": stacks["feedforward_norm"],
        "mlp.gate_proj": stacks["gate"],
        "mlp.down_proj": stacks["down"],
        "mlp.up_proj": stacks["up"],
    }
    state = {"model.embed_tokens.weight": stacks["embedding"], "model.norm.weight": stacks["final_norm"]}
    for name, stack in per_layer.items():
        for layer in range(shape.layers):
            state[f"model.layers.{layer}.{name}.weight"] = stack[layer].clone()
    return shape.config(), state
