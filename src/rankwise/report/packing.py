"""Numbers and text on their way into a page: short, finite, and unable to leave the script element they stand in."""

from __future__ import annotations

import base64
import json
import math
import sys
from array import array
from collections.abc import Iterable

# `<` could end the script element or open a comment, and the separators end a line in older JavaScript.
_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def script_json(value: object) -> str:
    """JSON for a `<script type="application/json">` element: no character in it has a meaning in HTML.

    >>> script_json({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_ESCAPED)


def rounded(value: object, digits: int = 7) -> float | None:
    """A number to so many significant digits, or None where there is no finite number.

    >>> rounded(1 / 3), rounded(float("nan")), rounded(None)
    (0.3333333, None, None)
    """
    number = finite(value)
    return None if number is None else float(f"{number:.{digits}g}")


def rounded_up(value: object) -> float | None:
    """An error bound to two significant digits, never smaller than it was.

    >>> rounded_up(1.001e-9), rounded_up(0.5)
    (1.1e-09, 0.5)
    """
    number = finite(value)
    if number is None or number <= 0:
        return number
    short = float(f"{number:.1e}")
    return short if short >= number else float(f"{short + 10.0 ** (math.floor(math.log10(number)) - 1):.1e}")


def finite(value: object) -> float | None:
    """A finite float, or None for whatever else stands in a record."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def packed(values: Iterable[object]) -> str:
    """Numbers as little-endian float32 in base64: a third of their length as text; what is not finite becomes NaN.

    >>> packed([1.0, None])
    'AACAPwAAwH8='
    """
    numbers = array("f", (_single(finite(value)) for value in values))
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode("ascii")


def _single(number: float | None) -> float:
    # float32 ends at 3.4e38: what is larger has no place on a plot either.
    return math.nan if number is None or abs(number) > 3e38 else number
