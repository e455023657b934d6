"""Broadcasting of batch dimensions: `torch.broadcast_shapes` imports all of sympy at its first call, half a second."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def broadcast(*shapes: Sequence[int]) -> torch.Size:
    """The shape that all shapes broadcast to, or a `ValueError`.

    >>> broadcast((3, 1), (4,), ())
    torch.Size([3, 4])
    """
    # A list, and not a map with a default: torch.compile reads this on the way through every factorized layer.
    sizes = [1] * max([0, *[len(shape) for shape in shapes]])
    for shape in shapes:
        for place in range(-len(shape), 0):
            if shape[place] != 1:
                if sizes[place] not in (1, shape[place]):
                    raise ValueError(f"{', '.join(str(tuple(one)) for one in shapes)} do not broadcast")
                sizes[place] = shape[place]
    return torch.Size(sizes)
