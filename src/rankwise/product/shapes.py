"""Broadcasting of batch dimensions: `torch.broadcast_shapes` imports all of sympy at its first call, half a second."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def broadcast(*shapes: Sequence[int]) -> torch.Size:
    """The shape that all shapes broadcast to, or a `ValueError`.

    >>> broadcast((3, 1), (4,), ())
    torch.Size([3, 4])
    """
    sizes = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for place in range(-len(shape), 0):
            if shape[place] != 1:
                if sizes[place] not in (1, shape[place]):
                    raise ValueError(f"{', '.join(str(tuple(one)) for one in shapes)} do not broadcast")
                sizes[place] = shape[place]
    return torch.Size(sizes)
