"""When a run reached the stages of a path: the moments at which products cross half their plateaus."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.path import Path, Stage

if TYPE_CHECKING:
    from jaxtyping import Float

HALF = 0.5
# A coordinate that activates a second time with the same sign has to have been below this share of its plateau.
GONE = 1e-3


def crossing_times(
    path: Path,
    times: Float[Tensor, " n"],
    products: Float[Tensor, "n p"],
    *,
    refine: Callable[[int, float, int, int], float],
) -> Float[Tensor, " stages"]:
    """When each stage of a path happened: the first time that its product has half the plateau's value and its sign.

    A second activation of a coordinate is looked for after the first has passed, and, with the same sign, after the
    product has been next to zero.

    Arguments:
        path: the stages.
        times: when the products were recorded.
        products: all of them, at those times.
        refine: from a coordinate, a level that its product crosses upwards or (negative) downwards, and the two
            numbers of the times around the crossing, to the moment itself.

    Returns:
        One time for each stage; NaN where the run ended before.
    """
    if path.stages and products.shape[-1] != len(path.start.product):
        raise UserError(
            f"a path of {len(path.start.product)} products was held against a run of {products.shape[-1]}: give "
            "the path of the same problem"
        )
    found: list[float] = []
    latest: dict[int, tuple[int, int]] = {}
    for stage in path.stages:
        begin = _search_from(stage, products, latest)
        place = None if begin is None else _first_above(stage, products, begin)
        if place is None:
            found.append(math.nan)
            continue
        latest[stage.coordinate] = (place, stage.sign)
        level = HALF * float(stage.product[stage.coordinate])
        found.append(float(times[0]) if place == 0 else refine(stage.coordinate, level, place - 1, place))
    return torch.tensor(found, dtype=torch.float64)


def _height(stage: Stage, products: Tensor) -> Tensor:
    """The newcomer's product as a share of its plateau."""
    return products[:, stage.coordinate] / stage.product[stage.coordinate]


def _search_from(stage: Stage, products: Tensor, latest: dict[int, tuple[int, int]]) -> int | None:
    if stage.coordinate not in latest:
        return 0
    place, sign = latest[stage.coordinate]
    if sign != stage.sign:
        return place
    below = (_height(stage, products[place:]) < GONE).nonzero().flatten()
    return place + int(below[0]) if len(below) else None


def _first_above(stage: Stage, products: Tensor, begin: int) -> int | None:
    if stage.product[stage.coordinate] == 0:  # It left again within its own stage: there is no plateau to cross.
        return None
    above = (_height(stage, products[begin:]) > HALF).nonzero().flatten()
    return begin + int(above[0]) if len(above) else None
