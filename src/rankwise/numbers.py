"""Numbers as a record holds them: short, finite or null, and bounds never rounded down."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor

DIGITS = 9
BOUND_DIGITS = 3


def number(value: float) -> float | None:
    """A value to nine digits; null where there is none.

    >>> number(1 / 3), number(float("nan"))
    (0.333333333, None)
    """
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def bound(value: float) -> float | None:
    """An error bound to three digits, rounded up; it also covers what `number` rounded away only where that is larger.

    >>> bound(1.2341e-9), bound(0.0), bound(float("inf"))
    (1.24e-09, 0.0, None)
    """
    if not math.isfinite(value):
        return None
    if value <= 0:
        return 0.0
    exponent = math.floor(math.log10(value)) - BOUND_DIGITS + 1
    short = float(f"{value:.{BOUND_DIGITS - 1}e}")
    rounded = short if short >= value else float(f"{short + 10.0**exponent:.{BOUND_DIGITS - 1}e}")
    return rounded if math.isfinite(rounded) else None


def numbers(values: Tensor) -> list[float | None]:
    """A row of values."""
    return [number(value) for value in values.tolist()]


def bounds(values: Tensor | Iterable[float]) -> list[float | None]:
    """A row of error bounds."""
    return [bound(value) for value in (values.tolist() if isinstance(values, Tensor) else values)]
