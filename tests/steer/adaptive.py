"""What AdamW makes of the balance of factors, by start and decay, and what keeps it.

Two factorized layers with a nonlinearity between them learn a fixed batch. Adam's steps are no gradient's, so that no
law holds: these are measurements.

    .venv/bin/python -m tests.steer.adaptive
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

import rankwise as rw
from tests.steer.descent import classifier, gaussian, run

Charge = Literal["none", "factors", "product", "product, and balance", "product, rebalanced"]

# Rebalanced every 50 steps, and so 40 steps before the end for the last time.
RATE, DECAY, STEPS = 1e-2, 0.1, 390
CHARGES: tuple[Charge, ...] = ("none", "factors", "product", "product, and balance", "product, rebalanced")
STARTS = {"spectral": rw.Spectral(draw=nn.init.kaiming_normal_), "regular": nn.init.kaiming_normal_}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The larger of both layers' gaps over their half-sums, at the start and at the end, and the loss at the end."""

    before: float
    after: float
    loss: float


def outcome(start: str, charge: Charge, *, seed: int = 3) -> Outcome:
    """Train one net."""
    net = classifier(seed, init=STARTS[start])
    before = gap(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=0.0 if charge == "none" else DECAY)
    if charge.startswith("product"):
        rw.FrobeniusDecay(net).attach(optimizer)
    if charge == "product, and balance":
        rw.BalanceDecay(net, coefficient=1.0).attach(optimizer)
    if charge == "product, rebalanced":
        rebalance = rw.Rebalancing(lambda: rw.balance_(net, optimizer=optimizer, second_moments="estimate"))
        rebalance.attach(optimizer, every=50)
    inputs = gaussian(64, 9, seed=5)
    labels = inputs[:, :5].square().argmax(1)
    run(optimizer, lambda: F.cross_entropy(net(inputs), labels), STEPS)
    return Outcome(before=before, after=gap(net), loss=F.cross_entropy(net(inputs), labels).item())


def gap(net: nn.Module) -> float:
    layers = (layer for layer in net.modules() if isinstance(layer, rw.FactorizedLinear))
    return max(rw.balance(layer.product.detach()).relative.item() for layer in layers)


def outcomes(*, seed: int = 3) -> dict[tuple[str, Charge], Outcome]:
    return {(start, charge): outcome(start, charge, seed=seed) for start in STARTS for charge in CHARGES}


def table(found: dict[tuple[str, Charge], Outcome]) -> Table:
    columns = Table(box=box.MARKDOWN)
    for column in ("start", "decay of", "gap / half-sum", "loss"):
        columns.add_column(column, justify="left" if column in ("start", "decay of") else "right")
    for (start, charge), one in found.items():
        columns.add_row(start, charge, f"{one.before:.1%} to {one.after:.1%}", f"{one.loss:.3f}")
    return columns


if __name__ == "__main__":
    Console(width=120).print(table(outcomes()))
