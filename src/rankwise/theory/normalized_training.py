"""Why a spectral start and Frobenius decay need each other: what each leaves of the imbalance, and what that costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.factorized.certificate import lifted
from rankwise.theory.factorized.convention import checked_decay
from rankwise.theory.factorized.flowing import Penalty
from rankwise.theory.side_by_side import Experiment, SideBySide


class Start(Enum):
    """Where factors begin: from a dense matrix's best approximation, shared evenly, or each as a layer of its own."""

    SPECTRAL = "spectral"
    REGULAR = "regular"


CELLS = tuple((start, penalty) for start in Start for penalty in (Penalty.NONE, Penalty.FACTORS, Penalty.PRODUCT))


@dataclass(frozen=True)
class StartAndDecay(Experiment):
    """The six ways to begin and to decay, trained on the same noisy direction before a normalization layer.

    Arguments:
        imbalance: `|A^T A - R R^T|_F` at the end, predicted from the one at the start, beside the trained; in the order
            of `cells`. Frobenius decay and none conserve it, weight decay multiplies it by `exp(-2 lam rate steps)`.
        begun: the same at the start.
        cells: start and penalty of each run.
        alignment: the cosine between product and target that each run ends at, the mean of its last tenth.
        best: the largest that a product of this rank can have.
    """

    imbalance: SideBySide
    begun: Tensor = field(kw_only=True)
    cells: tuple[tuple[Start, Penalty], ...] = field(kw_only=True)
    alignment: Tensor = field(kw_only=True)
    best: float = field(kw_only=True)

    def reached(self, start: Start, penalty: Penalty) -> float:
        """The alignment of one run."""
        return float(self.alignment[self.cells.index((start, penalty))])


def start_and_decay(
    *,
    size: int = 48,
    rank: int = 5,
    rate: float = 0.05,
    decay: float = 5e-3,
    noise: float = 0.5,
    steps: int = 6000,
    seed: int = 0,
) -> StartAndDecay:
    """Train `A R` to point along a random target, `L = -<W, T> / |W| |T|` with noisy gradients, in all six ways.

    Regular starts give the two factors different scales (`A^T A ~ 2 m / r`, `R R^T ~ 2`), and Frobenius decay, a
    function of the product, keeps that difference for ever: the smaller factor's side then learns too fast and the
    other too slowly. A spectral start has none to keep, and weight decay removes it.

    Arguments:
        size: of the square target.
        rank: of the product.
        rate: the learning rate.
        decay: `lam`, of the factors or of the product.
        noise: the norm of the gradient's noise, as that of the target is 1.
        steps: how many.
        seed: of target, starts and noise.

    >>> found = start_and_decay(size=16, rank=3, steps=300)
    >>> found.imbalance.relative_error < 0.05, len(found.cells)
    (True, 6)
    """
    lam = checked_decay(decay)
    if not 1 <= rank <= size or not rate > 0 or steps < 10 or not noise >= 0:
        raise UserError(
            f"rank {rank} of {size}, rate {rate:g}, noise {noise:g} and {steps} steps were given: give a rank up to "
            "the size, a positive rate and at least ten steps"
        )
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    target = normal(size, size)
    target = target / target.norm()
    dense = normal(size, size) * math.sqrt(2 / size)
    regular = normal(size, rank) * math.sqrt(2 / rank), normal(rank, size) * math.sqrt(2 / size)
    u, values, vt = torch.linalg.svd(dense)
    spectral = lifted((u[:, :rank] * values[:rank]) @ vt[:rank], rank=rank)
    starts = {Start.SPECTRAL: spectral, Start.REGULAR: regular}
    a, r = (torch.stack([starts[start][side] for start, _ in CELLS]) for side in (0, 1))
    on_factors, on_product = (
        torch.tensor([lam if penalty is kind else 0.0 for _, penalty in CELLS], dtype=torch.float64)[:, None, None]
        for kind in (Penalty.FACTORS, Penalty.PRODUCT)
    )
    begun = a.mT @ a - r @ r.mT
    angles = []
    for step in range(steps):
        whole = a @ r
        length = torch.linalg.matrix_norm(whole)[:, None, None]
        unit = whole / length
        push = -target + noise / size * normal(size, size)
        if step >= steps - steps // 10:
            angles.append((unit * target).sum((-2, -1)))
        force = (push - (push * unit).sum((-2, -1), keepdim=True) * unit) / length + on_product * whole
        a, r = a - rate * (force @ r.mT + on_factors * a), r - rate * (a.mT @ force + on_factors * r)
    shrunk = (-2 * on_factors * rate * steps).exp()
    best = torch.linalg.svdvals(target)[:rank].norm()
    return StartAndDecay(
        SideBySide(torch.linalg.matrix_norm(begun * shrunk), simulated=torch.linalg.matrix_norm(a.mT @ a - r @ r.mT)),
        begun=torch.linalg.matrix_norm(begun),
        cells=CELLS,
        alignment=torch.stack(angles).mean(0),
        best=float(best),
    )
