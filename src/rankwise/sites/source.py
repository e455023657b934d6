"""Where tensors come from: a live module, a state dict, a checkpoint, or any other mapping of names to tensors."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from rankwise.errors import UserError
from rankwise.product.product import REAL_TYPES

# A shape alone stands for a tensor of real numbers.
REAL = frozenset({*(str(dtype).removeprefix("torch.") for dtype in REAL_TYPES), "shape"})


@runtime_checkable
class Reader(Protocol):
    """A source that can read some rows of a tensor without the rest."""

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> Tensor: ...


Source = nn.Module | Mapping[str, Tensor] | Reader


def tensor_of(source: Source, name: str, rows: tuple[int, int] | None = None) -> tuple[Tensor, bool]:
    """The named tensor, and whether it was already cut to `rows` (only a reader does that, to spare the reading)."""
    try:
        if isinstance(source, nn.Module):
            return _module_tensor(source, name), False
        if rows is not None and isinstance(source, Reader):
            return source.read(name, (slice(*rows),)), True
        return source[name], False  # pyright: ignore[reportIndexIssue] - a Reader without rows is a mapping too
    except (KeyError, AttributeError):
        names = list(shapes_of(source))
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"; did it move to '{near[0]}'?" if near else ""
        raise UserError(f"there is no tensor '{name}' among the {len(names)} given{hint}") from None


def shapes_of(source: Any) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of real numbers in a source, without reading it where the source allows that."""
    return {name: shape for name, (shape, kind) in _described(source).items() if kind in REAL}


def not_real(source: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """The shape and the type of every tensor whose numbers are whole, complex, or of a type that torch cannot add."""
    return {name: (shape, kind) for name, (shape, kind) in _described(source).items() if kind not in REAL}


def _described(source: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """The shape and the type of every tensor; the type of a bare shape is nobody's business."""
    if isinstance(source, nn.Module):
        parameters = source.named_parameters(remove_duplicate=False)
        return {name: (tuple(parameter.shape), _type_of(parameter)) for name, parameter in parameters}
    if (entries := getattr(source, "entries", None)) is not None:
        return {name: (tuple(entry.shape), entry.dtype) for name, entry in entries.items()}
    if not isinstance(source, Mapping):
        raise UserError(
            f"expected a module, a checkpoint or a mapping of names to tensors, got {type(source).__name__}"
        )
    shapes = {}
    for name, value in source.items():
        if isinstance(value, Tensor):
            shapes[name] = tuple(value.shape), _type_of(value)
        elif isinstance(value, tuple) and all(isinstance(size, int) for size in value):
            shapes[name] = value, "shape"
        else:
            raise UserError(f"'{name}' is a {type(value).__name__}, not a tensor: give the state dict itself")
    return shapes


def _type_of(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _module_tensor(module: nn.Module, name: str) -> Tensor:
    path, _, last = name.rpartition(".")
    value = getattr(module.get_submodule(path), last)
    if not isinstance(value, Tensor):
        raise AttributeError(name)
    return value
