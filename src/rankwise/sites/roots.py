"""Which configuration governs which part of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

# What the parts of composite models are called in their parameter names, by the stem of the configuration key.
_HINTS = {
    "text": ("text", "language", "llm"),
    "vision": ("vision", "visual", "image"),
    "audio": ("audio", "speech"),
    "qformer": ("qformer",),
    "encoder": ("encoder",),
    "decoder": ("decoder",),
}


@dataclass(frozen=True)
class Root:
    """A part of a model with a configuration of its own.

    Arguments:
        prefix: the path of the part, "" for the whole model.
        values: its configuration.
        stack: what its sites' names start with, "" for the whole model.
        hints: words that mark its parameters' names, where the path is not known.
        around: the whole model, where this part has all that no other part claims.
    """

    prefix: str
    values: Mapping[str, Any]
    stack: str = ""
    hints: tuple[str, ...] = ()
    around: Root | None = None

    @property
    def type(self) -> str | None:
        return self.values.get("model_type")

    def owns(self, name: str) -> bool:
        """Whether a parameter or module of this name belongs to the part."""
        if self.hints:
            return any(hint in component for component in name.split(".") for hint in self.hints)
        return not self.prefix or name == self.prefix or name.startswith(f"{self.prefix}.")


class Attributes(Mapping[str, Any]):
    """A module's attributes as a mapping, for layouts that are matched by class.

    Numbers, texts and truths stand for themselves, a parameter for True, a submodule for a mapping of its own, in which
    `class` is the name of its class.

    >>> Attributes(nn.ModuleDict({"norm": nn.LayerNorm(4)}))["norm"]["class"]
    'LayerNorm'
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __getitem__(self, name: str) -> Any:
        if name == "class":
            return type(self._module).__name__
        value = getattr(self._module, name, None)
        if isinstance(value, nn.Module):
            return Attributes(value)
        if isinstance(value, nn.Parameter):
            return True
        if isinstance(value, int | float | str | bool):
            return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        names = [*vars(self._module)]
        names += [name for name, _ in self._module.named_children()]
        names += [name for name, _ in self._module.named_parameters(recurse=False)]
        return (name for name in dict.fromkeys(names) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def module_roots(model: nn.Module) -> list[Root]:
    """The parts of a live model that carry a configuration, innermost last."""
    roots: list[tuple[Root, Any]] = []
    for path, module in model.named_modules():
        config = getattr(module, "config", None)
        if config is None or not hasattr(config, "to_dict") or not getattr(config, "model_type", None):
            continue
        above = [root for root in roots if root[0].owns(path) or not root[0].prefix]
        if any(config is known for _, known in above):
            continue
        parent = above[-1][0] if above else None
        same = parent is not None and parent.type == config.model_type
        stack = "" if parent is None else (parent.stack if same else _stack(above[-1][1], config, path))
        roots.append((Root(path, config.to_dict(), stack), config))
    return [root for root, _ in roots]


def config_roots(config: Mapping[str, Any] | None) -> list[Root]:
    """The parts that a configuration file speaks of: itself, and every configuration nested in it."""
    if not config:
        return []
    whole = Root("", config)
    parts = []
    for key, value in config.items():
        if isinstance(value, Mapping) and key.endswith("_config") and (value.get("model_type") or key == "text_config"):
            stem = key.removesuffix("_config")
            parts.append(Root("", value, stem, _HINTS.get(stem, (stem,))))
    text = next((part for part in parts if part.stack == "text"), None)
    if text is None or _has_attention(config):
        return [whole, *parts]
    # The wrapper has no attention of its own: what no other part claims is the text model's.
    return [whole, Root("", text.values, "text", around=whole), *parts]


def owner(roots: list[Root], name: str) -> Root | None:
    """The innermost part that a parameter belongs to."""
    return next((root for root in reversed(roots) if root.owns(name)), None)


def _has_attention(config: Mapping[str, Any]) -> bool:
    return any(key in config for key in ("num_attention_heads", "n_head", "num_heads", "n_heads"))


def _stack(above: Any, config: Any, path: str) -> str:
    """The name of a part: the stem of the key that its configuration has in the one above, as in `config.json`.

    Where that cannot be told, what its path hints at.
    """
    inside = {key.removesuffix("_config"): value for key, value in vars(above).items() if key.endswith("_config")}
    same = [stem for stem, value in inside.items() if value is config]
    alike = [stem for stem, value in inside.items() if getattr(value, "model_type", None) == config.model_type]
    if len(same or alike) == 1:
        return (same or alike)[0]
    for component in reversed(path.split(".")):
        for stem, hints in _HINTS.items():
            if any(hint in component for hint in hints):
                return stem
    return path.rpartition(".")[2]
