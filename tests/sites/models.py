"""Small state dicts in the form of well-known architectures, without any library that defines them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 10,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "num_hidden_layers": 2,
}
GPT2: dict[str, Any] = {"model_type": "gpt2", "n_embd": 15, "n_head": 3, "n_layer": 2}


def state(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    """Random float64 tensors of the given shapes."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def llama_shapes(prefix: str = "", *, layers: int = 2, bias: bool = False) -> dict[str, tuple[int, ...]]:
    """Llama with grouped keys, an embedding, and a feed-forward layer; width 10, 6 heads in 2 groups of size 4."""
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}embed_tokens.weight": (32, 10)}
    for layer in range(layers):
        at = f"{prefix}layers.{layer}"
        rows = {"q_proj": (24, 10), "k_proj": (8, 10), "v_proj": (8, 10), "o_proj": (10, 24)}
        for name, shape in rows.items():
            shapes[f"{at}.self_attn.{name}.weight"] = shape
            if bias and name != "o_proj":
                shapes[f"{at}.self_attn.{name}.bias"] = shape[:1]
        shapes[f"{at}.mlp.up_proj.weight"] = (14, 10)
        shapes[f"{at}.mlp.down_proj.weight"] = (10, 14)
        shapes[f"{at}.input_layernorm.weight"] = (10,)
    return shapes


def gpt2_shapes(prefix: str = "", *, layers: int = 2) -> dict[str, tuple[int, ...]]:
    """GPT-2: fused, transposed, with biases; width 15, 3 heads of size 5."""
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}wte.weight": (32, 15), f"{prefix}wpe.weight": (16, 15)}
    for layer in range(layers):
        at = f"{prefix}h.{layer}"
        shapes |= {
            f"{at}.attn.c_attn.weight": (15, 45),
            f"{at}.attn.c_attn.bias": (45,),
            f"{at}.attn.c_proj.weight": (15, 15),
            f"{at}.attn.c_proj.bias": (15,),
            f"{at}.mlp.c_fc.weight": (15, 60),
            f"{at}.ln_1.weight": (15,),
        }
    return shapes


class Config:
    """A configuration as transformers has it: attributes, and `to_dict`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        self.model_type = values.get("model_type")

    def to_dict(self) -> dict[str, Any]:
        return dict(self._values)


class Tree(nn.Module):
    """A module whose parameters have the given names and values."""

    def __init__(self, tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        if config is not None:
            self.config = Config(config)
        for name, tensor in tensors.items():
            path, _, last = name.rpartition(".")
            module: nn.Module = self
            for component in filter(None, path.split(".")):
                if component not in dict(module.named_children()):
                    module.add_module(component, nn.Module())
                module = module.get_submodule(component)
            module.register_parameter(last, nn.Parameter(tensor))
