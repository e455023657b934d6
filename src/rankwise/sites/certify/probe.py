"""Inputs that a model can be run on, made up from its configuration."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

BATCH = 4
TOKENS = 7
ENCODER_TOKENS = 9


def probes(model: nn.Module, inputs: Mapping[str, Any] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Modules to run and keyword arguments for them: the whole model, then its parts that have a configuration.

    Parts of a composite model run alone, because what joins them (image tokens in a text) is the model's own affair.
    """
    if inputs is not None:
        yield "", dict(inputs)
        return
    given = made_up(model)
    if given is not None:
        yield "", given
        if "pixel_values" in given:
            # Some models compare two images, or are shown several in one text.
            yield "", {**given, "pixel_values": torch.stack([given["pixel_values"]] * 2, 1)}
    for path, module in model.named_modules():
        if path and hasattr(module, "main_input_name") and (given := made_up(module)) is not None:
            yield path, given


def made_up(model: nn.Module) -> dict[str, Any] | None:
    """Random inputs for a model with a configuration, or None where its forward names no input that is known."""
    config = getattr(model, "config", None)
    if config is None:
        return None
    generator = torch.Generator().manual_seed(0)
    parameter = next((each for each in model.parameters() if each.is_floating_point()), torch.zeros(()))
    makers = _Makers(config, generator, parameter)
    signature = inspect.signature(model.forward).parameters
    given = {}
    for name, spec in signature.items():
        required = spec.default is inspect.Parameter.empty and spec.kind is not inspect.Parameter.VAR_KEYWORD
        if (required or name in _OFFERED or name == getattr(model, "main_input_name", None)) and (
            value := makers.make(name)
        ) is not None:
            given[name] = value
    if "input_ids" in given:
        given.pop("inputs_embeds", None)
    if "use_cache" in signature:
        given["use_cache"] = False
    return given or None


_OFFERED = (
    "input_ids",
    "decoder_input_ids",
    "pixel_values",
    "input_values",
    "input_features",
    "attention_mask",
    "bbox",
    "visual_feats",
    "visual_pos",
)


class _Makers:
    """A tensor for each name that transformers' models give their inputs."""

    def __init__(self, config: Any, generator: torch.Generator, like: Tensor) -> None:
        self.config, self.generator, self.like = config, generator, like

    def make(self, name: str) -> Any:
        makers = {
            "input_ids": lambda: self._tokens(TOKENS * (self._size("downsampling_rate") or 1)),
            "decoder_input_ids": lambda: self._tokens(TOKENS),
            "attention_mask": lambda: None,
            "pixel_values": self._pixels,
            "prompt_pixel_values": self._pixels,
            "prompt_masks": self._pixels,
            "hidden_states": lambda: self._normal(
                BATCH, TOKENS, self._size("input_dim", "hidden_size", "d_model", "embed_dim", "n_embd")
            ),
            "inputs_embeds": lambda: self._normal(BATCH, TOKENS, self._size("hidden_size", "d_model", "n_embd")),
            "encoder_hidden_states": lambda: self._normal(
                BATCH,
                ENCODER_TOKENS,
                self._size("encoder_hidden_size", "cross_attention_hidden_size", "hidden_size", "d_model"),
            ),
            "noise_embeds": lambda: self._normal(BATCH, TOKENS, self._size("hidden_size")),
            "context_hidden_states": lambda: self._normal(BATCH, ENCODER_TOKENS, self._size("hidden_size")),
            "query_embeds": lambda: self._normal(BATCH, TOKENS, self._size("hidden_size", "d_model")),
            "input_values": self._sound,
            "input_features": self._features,
            "bbox": self._boxes,
            "visual_feats": lambda: self._normal(BATCH, ENCODER_TOKENS, self._size("visual_feat_dim")),
            "visual_pos": lambda: self._normal(BATCH, ENCODER_TOKENS, self._size("visual_pos_dim")),
            "input_features_mask": lambda: torch.ones(BATCH, 24, dtype=torch.bool, device=self.like.device),
        }
        return makers[name]() if name in makers else None

    def _size(self, *names: str) -> int | None:
        return next((value for name in names if isinstance(value := getattr(self.config, name, None), int)), None)

    def _tokens(self, count: int) -> Tensor | None:
        text = self.config.get_text_config() if hasattr(self.config, "get_text_config") else self.config
        words = getattr(text, "vocab_size", None) or self._size("vocab_size") or 90
        special = {
            value
            for key, value in self.config.to_dict().items()
            if key.endswith(("_token_id", "_token_index")) and isinstance(value, int)
        }
        plain = torch.tensor([word for word in range(min(words, 1000)) if word not in special] or [0])
        picks = torch.randint(len(plain), (BATCH, count), generator=self.generator)
        return plain[picks].to(self.like.device)

    def _normal(self, *shape: int | None) -> Tensor | None:
        sizes = [size for size in shape if size is not None]
        return torch.randn(sizes, generator=self.generator).to(self.like) if len(sizes) == len(shape) else None

    def _boxes(self) -> Tensor:
        corners = torch.randint(0, 100, (1, TOKENS, 4), generator=self.generator).cumsum(-1)
        return corners.expand(BATCH, TOKENS, 4).to(self.like.device)

    def _pixels(self) -> Tensor | None:
        vision = getattr(self.config, "vision_config", None) or self.config
        size = getattr(vision, "image_size", None) or getattr(vision, "input_size", None) or 32
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return self._normal(BATCH, getattr(vision, "num_channels", 3), int(height), int(width))

    def _sound(self) -> Tensor | None:
        if (bins := self._size("num_mel_bins")) is not None:
            return self._normal(BATCH, self._size("max_length") or 64, bins)
        return self._normal(BATCH, 1600)

    def _features(self) -> Tensor | None:
        if (side := self._size("spec_size")) is not None and (bins := self._size("num_mel_bins")) is not None:
            return self._normal(BATCH, 1, side * side // bins, bins)
        bins = self._size("input_dim", "num_mel_bins", "input_feat_per_channel", "feature_size") or 80
        if (length := self._size("max_source_positions")) is not None and hasattr(self.config, "num_mel_bins"):
            return self._normal(BATCH, bins, 2 * length)
        return self._normal(BATCH, 24, bins)
