"""Why a spectral start and Frobenius decay need each other: six layers that learn the same thing side by side.

A layer in front of a normalization feels only its direction, and its gradient is noisy. Three layers start spectrally,
three from factors drawn for themselves; of each, one decays not at all, one in its factors, one in its product.

    .venv/bin/python -m tests.steer.pairing
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import rankwise as rw

Arm = tuple[Literal["spectral", "regular"], Literal["none", "factors", "product"]]

SIZE, RANK = 48, 5
RATE, DECAY, STEPS = 0.05, 5e-3, 6000
ARMS: list[Arm] = [(start, charge) for start in ("spectral", "regular") for charge in ("none", "factors", "product")]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one layer.

    Arguments:
        missed: how far the cosine to the target stayed below the largest one of this rank.
        before, after: `|A^T A - B B^T|_F` at the first and at the last step.
    """

    missed: float
    before: float
    after: float


def made(start: str) -> rw.FactorizedLinear:
    """Both starts from Kaiming's normal draw, of the dense weight or of each factor."""
    kaiming = nn.init.kaiming_normal_
    init = rw.Spectral(draw=kaiming) if start == "spectral" else kaiming
    return rw.FactorizedLinear(SIZE, SIZE, rank=RANK, bias=False, init=init, execution="one-step")


def run(*, steps: int = STEPS, seed: int = 0) -> dict[Arm, Outcome]:
    """Ascend the cosine to a random matrix, seen through noise of its own size that is drawn anew at each step."""
    torch.manual_seed(seed)
    target = nn.functional.normalize(torch.randn(SIZE, SIZE).flatten(), dim=0).reshape(SIZE, SIZE)
    best = torch.linalg.svdvals(target)[:RANK].norm().item()
    layers = {arm: made(arm[0]) for arm in ARMS}
    groups = [
        {"params": list(layer.parameters()), "weight_decay": 0.0 if charge == "none" else DECAY}
        for (_, charge), layer in layers.items()
    ]
    optimizer = torch.optim.SGD(groups, lr=RATE)
    # It takes the weight decay of these layers over.
    rw.FrobeniusDecay([layer for (_, charge), layer in layers.items() if charge == "product"]).attach(optimizer)
    before = {arm: imbalance(layer) for arm, layer in layers.items()}
    for _ in range(steps):
        seen = target + torch.randn(SIZE, SIZE) / SIZE
        optimizer.zero_grad()
        (-sum(cosine(layer.weight, seen) for layer in layers.values())).backward()
        optimizer.step()
    return {
        arm: Outcome(
            missed=best - cosine(layer.weight.detach(), target).item(), before=before[arm], after=imbalance(layer)
        )
        for arm, layer in layers.items()
    }


def cosine(weight: Tensor, direction: Tensor) -> Tensor:
    """The part of a direction along a weight, whatever the weight's size."""
    return (weight * direction).sum() / torch.linalg.matrix_norm(weight)


def imbalance(layer: rw.FactorizedLinear) -> float:
    return rw.balance(layer.product.detach()).imbalance_norm.item()


def table(outcomes: dict[Arm, Outcome]) -> Table:
    found = Table(box=box.MARKDOWN)
    for column in ("start", "decay of", "cosine below the best", "imbalance"):
        found.add_column(column, justify="left" if column in ("start", "decay of") else "right")
    for (start, charge), outcome in outcomes.items():
        found.add_row(start, charge, f"{outcome.missed:.4f}", f"{outcome.before:.1f} to {outcome.after:.1f}")
    return found


if __name__ == "__main__":
    Console(width=120).print(table(run()))
