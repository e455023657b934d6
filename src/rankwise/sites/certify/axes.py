"""Which axis of a captured tensor is which: batch, head, query, key, matched by size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from math import prod

from torch import Tensor


def readings(lead: tuple[int, ...]) -> list[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
    """The ways to read the leading axes of a stream as samples and positions: both sizes, the shape and the order.

    >>> readings((4, 7))[0]
    (4, 7, (4, 7), (0, 1))
    """
    if len(lead) == 1:
        return [(1, lead[0], (1, lead[0]), (0, 1))]
    flat = (lead[0], prod(lead[1:]))
    ways = [(flat[0], flat[1], flat, (0, 1))]
    if len(lead) == 2:
        ways.append((lead[1], lead[0], lead, (1, 0)))
    else:
        inner = (prod(lead[:-1]), lead[-1])
        ways.append((*inner, inner, (0, 1)))
    ways.append((1, prod(lead), (1, prod(lead)), (0, 1)))
    return list(dict.fromkeys(ways))


def as_samples(rows: Tensor, shape: tuple[int, ...], order: tuple[int, ...]) -> Tensor:
    """`[heads, tokens, size]` over a stream's tokens as `[samples, heads, positions, size]`."""
    split = rows.unflatten(1, shape)
    first, second = (axis + 1 for axis in order)
    return split.permute(first, 0, second, 3)


def arrangements(captured: Tensor, samples: int, heads: int, queries: int, keys: int) -> Iterator[Tensor]:
    """The ways to read a captured tensor as `[samples, heads, queries, keys]`; one key too many is a sink, left out."""
    if captured.ndim < 2 or captured.numel() == 0:
        return
    wanted = (samples, heads, queries)
    columns = captured.shape[-1]
    if columns not in (keys, keys + 1) or captured.numel() != prod(wanted) * columns:
        return
    seen = set()
    for read in _orders(captured, wanted):
        for first in range(columns - keys + 1) if columns == keys + 1 else (0,):
            part = read[..., :keys] if first == 0 else read[..., 1:]
            key = (part.stride(), part.storage_offset())
            if key not in seen:
                seen.add(key)
                yield part


def _orders(captured: Tensor, wanted: tuple[int, int, int]) -> Iterator[Tensor]:
    before = captured.shape[:-1]
    for order in permutations(range(3)):
        sizes = tuple(wanted[axis] for axis in order)
        if _splits(before, sizes):
            back = [order.index(axis) for axis in range(3)]
            yield captured.reshape(*sizes, captured.shape[-1]).permute(*back, 3)


def _splits(shape: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Whether the sizes follow from the shape by splitting and merging neighbours only, at common boundaries."""
    shape = tuple(size for size in shape if size != 1)
    sizes = tuple(size for size in sizes if size != 1)

    def products(parts: tuple[int, ...]) -> set[int]:
        return {prod(parts[:length]) for length in range(len(parts) + 1)}

    one, two = products(shape), products(sizes)
    return prod(shape) == prod(sizes) and (one <= two or two <= one)
