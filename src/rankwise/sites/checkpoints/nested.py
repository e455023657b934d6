"""The named tensors inside what a training script saved: at the top, under a usual key, or nested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from torch import Tensor

from rankwise.errors import CheckpointError
from rankwise.text import printable

# Where training scripts put the weights, the likeliest first.
WEIGHT_KEYS = (
    "state_dict",
    "model_state_dict",
    "model_state",
    "model",
    "module",
    "net",
    "network",
    "params",
    "weights",
)
# Where they put what the model is, the likeliest first: nanoGPT's `config` is of the run, `model_args` of the model.
CONFIG_KEYS = ("model_args", "model_config", "config", "hyper_parameters", "cfg", "args")
DEEPEST = 16
# A configuration that refers to itself would otherwise never end.
MOST_SETTINGS = 20_000


@dataclass(frozen=True)
class FoundTensors:
    """Tensors by name, the configuration saved with them, and what was decided on the way."""

    tensors: dict[str, Tensor]
    _: KW_ONLY
    notes: tuple[str, ...] = ()
    config: dict[str, Any] | None = None


def find_tensors(content: object, file: str) -> FoundTensors:
    """The state dict in an unpickled object.

    >>> import torch
    >>> found = find_tensors({"model": {"w": torch.zeros(2)}, "model_args": {"n_head": 2}}, "ckpt.pt")
    >>> list(found.tensors), found.config, found.notes
    (['w'], {'n_head': 2}, ("ckpt.pt: the weights are those under 'model'",))
    """
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{printable(file)} holds a {type(content).__name__}, a table of named tensors was expected"
        )
    configs = (content[key] for key in CONFIG_KEYS if isinstance(content.get(key), Mapping))
    config = next((_plain(found, iter(range(MOST_SETTINGS))) for found in configs), None)
    path: list[str] = []
    aside: list[str] = []
    weights: Mapping[Any, Any] = content
    passed: set[int] = set()
    while id(weights) not in passed and (key := _weight_key(weights)) is not None:
        passed.add(id(weights))
        aside += [str(other) for other, value in weights.items() if other != key and _holds_tensors(value)]
        path.append(key)
        weights = weights[key]
    optimizers = [key for key in weights if "optim" in str(key).lower() and isinstance(weights[key], Mapping)]
    aside += map(str, optimizers)
    tensors: dict[str, Tensor] = {}
    for name, tensor in _flattened(weights, leaving=optimizers):
        if name in tensors:
            raise CheckpointError(f"{printable(file)} holds '{printable(name)}' twice")
        tensors[name] = tensor
    if not tensors:
        raise CheckpointError(
            f"{printable(file)} holds no tensors under the keys {printable(sorted(map(str, content)))}"
        )
    notes = [f"{file}: the weights are those under '{'.'.join(path)}'"] if path else []
    if aside:
        notes.append(f"{file}: left aside {', '.join(repr(printable(name)) for name in sorted(aside))}")
    return FoundTensors(tensors, notes=tuple(notes), config=config)


def _weight_key(table: Mapping[Any, Any]) -> str | None:
    return next(
        (key for key in WEIGHT_KEYS if isinstance(table.get(key), Mapping) and _holds_tensors(table[key])), None
    )


def _holds_tensors(value: object) -> bool:
    return isinstance(value, Mapping) and next(_flattened(value), None) is not None


def _flattened(table: Mapping[Any, Any], leaving: Sequence[Any] = ()) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of nested tables under its dotted name but those of some keys; each table once, so a cycle ends."""
    seen: set[int] = set()
    waiting: list[tuple[str, Mapping[Any, Any]]] = [("", table)]
    while waiting:
        prefix, current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        nested = []
        for key, value in current.items():
            if current is table and key in leaving:
                continue
            if isinstance(value, Tensor):
                yield f"{prefix}{key}", value
            elif isinstance(value, Mapping):
                nested.append((f"{prefix}{key}.", value))
        waiting += reversed(nested)


def _plain(value: Any, room: Iterator[int], depth: int = 0) -> Any:
    """The value as JSON can hold it; what JSON cannot hold becomes its text, and what is beyond all measure goes."""
    if next(room, None) is None:
        return "…"
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if depth == DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {str(key): _plain(item, room, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, room, depth + 1) for item in value]
    # The text of a tensor would be slow to make, and says nothing of a model.
    return f"tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else printable(value)
