"""Small arithmetic over configuration keys, as the layout table writes it; nothing else can be computed.

num_key_value_heads or num_attention_heads      the first that is given
hidden_size // num_attention_heads              + - * // / ** and comparisons
heads_per_layer[layer]                          one entry of a list
'alibi' in position_kind                        membership
log(rope_parameters['factor'])                  the natural logarithm, the only function
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from rankwise.errors import UserError
from rankwise.text import printable

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: many is not None and one in many,
    ast.NotIn: lambda one, many: many is None or one not in many,
}
_LONGEST = 400
# Together with the length they keep every result small: no text of a layout can occupy a machine.
_LARGEST_POWER = 64
_LARGEST_BASE = 2**40


class ExpressionError(UserError):
    """An expression of a layout cannot be read or computed."""


def evaluate(expression: str | int | float, values: Mapping[str, Any]) -> Any:
    """Compute an expression over named values; a name that is not given is None, so that `or` can fall through.

    >>> evaluate("kv_heads or heads", {"heads": 12})
    12
    >>> evaluate("(width // heads) ** -0.5", {"width": 768, "heads": 12})
    0.125
    """
    if not isinstance(expression, str):
        return expression
    try:
        return _value(parsed(expression), values)
    except ExpressionError:
        raise
    except (TypeError, ZeroDivisionError, IndexError, KeyError, OverflowError, ValueError, RecursionError) as error:
        given = ", ".join(f"{name} = {values.get(name)!r:.40}" for name in sorted(names_in(expression)))
        raise ExpressionError(f"cannot compute '{printable(expression)}' with {given}: {error}") from None


def names_in(expression: str | int | float) -> set[str]:
    """The names that an expression needs.

    >>> sorted(names_in("kv_heads or heads"))
    ['heads', 'kv_heads']
    """
    if not isinstance(expression, str):
        return set()
    return {node.id for node in ast.walk(parsed(expression)) if isinstance(node, ast.Name)}


@lru_cache(maxsize=4096)
def parsed(expression: str) -> ast.expr:
    """The tree of an expression, or an `ExpressionError` where it cannot be one."""
    if len(expression) > _LONGEST:
        raise ExpressionError(f"an expression of {len(expression)} characters is too long (at most {_LONGEST})")
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError(
            f"'{printable(expression)}' is not an expression: use names, numbers, + - * // / ** and 'or'"
        ) from None


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value) if isinstance(value, int | float | str | None):
            return value
        case ast.Name(id=name):
            return values.get(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            one, two = _value(left, values), _value(right, values)
            if not (isinstance(one, int | float) and isinstance(two, int | float)):
                raise ExpressionError(f"'{ast.unparse(node)}' needs two numbers, got {one!r:.40} and {two!r:.40}")
            if isinstance(op, ast.Pow) and not (abs(two) <= _LARGEST_POWER and abs(one) <= _LARGEST_BASE):
                raise ExpressionError(f"{one:.4g} to the power {two:.4g} in '{ast.unparse(node)}' is too large")
            result = _BINARY[type(op)](one, two)
            if isinstance(result, complex):
                raise ExpressionError(f"'{ast.unparse(node)}' is no real number: {one:.4g} to the power {two:.4g}")
            return result
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, values)
        case ast.BoolOp(op=op, values=parts):
            stops = (lambda value: value) if isinstance(op, ast.Or) else (lambda value: not value)
            for part in parts:
                result = _value(part, values)
                if stops(result):
                    break
            return result  # pyright: ignore[reportPossiblyUnboundVariable] - a BoolOp has at least two parts
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return _COMPARE[type(op)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id="log"), args=[argument], keywords=[]):
            return math.log(_value(argument, values))
        case ast.Subscript(value=value, slice=index):
            container = _value(value, values)
            if isinstance(container, Mapping):
                return container.get(_value(index, values))
            return None if container is None else container[_value(index, values)]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, values) else orelse, values)
    raise ExpressionError(
        f"'{ast.unparse(node)}' is not allowed in a layout: use names, numbers, + - * // / ** and 'or'"
    )
