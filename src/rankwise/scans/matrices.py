"""The change of one matrix: how far it moved, and the rank that a LoRA of it needs."""

from __future__ import annotations

from typing import Any

import torch

from rankwise.numbers import bound, bounds, number, numbers
from rankwise.product.product import Product
from rankwise.product.randomized import Projected, project
from rankwise.product.spectrum import BELOW_FLOOR, UNCHANGED

# A matrix of at most this many singular values is decomposed whole; of a larger one so many triplets are looked for.
WHOLE = 1024
LOOKED_FOR = 256
ENERGIES = (0.90, 0.95, 0.99)


def matrix_record(change: Product) -> dict[str, Any]:
    """The norm, the leading singular values and the ranks of a change, or the reason why it has none."""
    assert change.start is not None
    size = change.start.norm.item()
    moved = torch.linalg.vector_norm(change.left, dtype=torch.float64).item()
    relative = number(moved / size) if size else None
    if reason := unranked(change, moved):
        return {"relative": relative, "norm": number(moved), "ranks": None, "reason": reason}
    found = project(change, triplets(tuple(change.shape)))
    grid = [rank for rank in (1, 2, 4, 8, 16, 32, 64, 128, 256) if rank <= len(found.values)]
    return {
        "relative": relative,
        "norm": number(moved),
        "values": numbers(found.values[:LOOKED_FOR]),
        "errors": bounds(found.residual[:LOOKED_FOR]),
        "ranks": {f"{share:.0%}": energy_rank(found, share) for share in ENERGIES},
        "missed": [[rank, bound(found.missed(rank))] for rank in grid],
        "reason": None,
    }


def unranked(change: Product, moved: float) -> str | None:
    """Why a change of this norm has no rank, or None."""
    assert change.start is not None
    if not moved < float("inf"):
        return "the change holds NaN or Inf"
    if moved == 0:
        return UNCHANGED
    if moved <= change.start.floor * change.start.norm.item():
        return BELOW_FLOOR.format(floor=change.start.floor)
    return None


def triplets(shape: tuple[int, ...], wanted: int = LOOKED_FOR) -> int:
    """How many singular triplets of a change are looked for: all of a small matrix, so many of a large one."""
    smallest = min(shape)
    return smallest if smallest <= WHOLE else min(wanted, smallest)


def energy_rank(found: Projected, share: float) -> int | None:
    """The least rank that keeps a share of the energy; None where more triplets than were looked for are needed."""
    kept = found.values.double().square().cumsum(0)
    reached = (kept >= share * found.energy * (1 - 1e-12)).nonzero()
    return int(reached[0].item()) + 1 if len(reached) else None
