"""See, steer and explain the rank of every weight product inside a neural network."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankwise.product.product import Product as Product

# Public names, and the module each one lives in. They are imported at first use, so that the command line can answer
# `--help` at once and nobody pays for a room that they never enter; the block above tells type checkers the same.
HOMES = {
    "Product": "rankwise.product.product",
}

__all__ = ["Product"]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'rankwise' has no attribute {name!r}: its public names are {', '.join(__all__)}")
    value = getattr(import_module(HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
