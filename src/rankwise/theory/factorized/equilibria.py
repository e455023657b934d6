"""Where training with decay ends: the spectrum of the product, predicted and trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.factorized.convention import Convention, checked_decay
from rankwise.theory.factorized.flowing import Penalty
from rankwise.theory.factorized.losses import matrix
from rankwise.theory.factorized.shrinkage import live_values, ridge, schatten_shrinkage
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float

MOST_STEPS = 100_000
# A run is settled when its gradients are this small against the target.
SETTLED = 1e-10
# How often that is asked.
PATIENCE = 100


@dataclass(frozen=True)
class Equilibria(Experiment):
    """The end points of training a chain of factors towards a matrix, for every coefficient of decay.

    Arguments:
        values: the product's singular values, predicted and trained, `[decays, k]`. On three and more factors some
            directions have two local minima; predicted is then the one in whose reach the run is.
        best: the predicted values of the global minimum, which differ from those only in such directions.
        mean_square: `sum_i s_i^(2/L)`, the Schatten quasi-norm of the trained product, beside the mean of the factors'
            squared Frobenius norms: equal where neighbouring factors are balanced. Zeros under other penalties.
        decays: the coefficients.
        factors: of each run, from left to right, `[decays, ...]`.
        residual: the largest entry of the gradient at the end, for every run.
        steps: how many were taken.
    """

    values: SideBySide
    mean_square: SideBySide
    best: Float[Tensor, "decays k"] = field(kw_only=True, repr=False)
    decays: Float[Tensor, " decays"] = field(kw_only=True)
    factors: tuple[Tensor, ...] = field(kw_only=True, repr=False)
    residual: Float[Tensor, " decays"] = field(kw_only=True, repr=False)
    steps: int = field(kw_only=True)

    @property
    def settled(self) -> bool:
        """Whether every run moved no more when it ended; if not, give more steps, or move a value off a threshold."""
        return bool((self.residual < 1e-6 * float(self.values.simulated.amax() or 1.0)).all())

    @property
    def ranks(self) -> SideBySide:
        """How many values are more than a millionth of the target's largest."""
        floor = 1e-6 * float(self.values.simulated.amax() or 1.0)
        return SideBySide(*((one > floor).double().sum(-1) for one in (self.values.predicted, self.values.simulated)))


def equilibria(
    target: Float[Tensor, "m n"],
    *,
    decay: float | Sequence[float],
    factors: int = 2,
    penalty: Penalty = Penalty.FACTORS,
    convention: Convention = Convention.HALVED,
    scale: float = 0.5,
    rank: int | None = None,
    start: float = 0.3,
    seed: int = 0,
    most_steps: int = MOST_STEPS,
) -> Equilibria:
    """Train `A_1 ... A_L` on `scale |A_1 ... A_L - target|^2` with decay by gradient descent until nothing moves.

    Decay on the factors soft-thresholds the target's singular values for two factors and shrinks them by the proximal
    map of the Schatten-2/L quasi-norm for more; on the product (Frobenius decay), or on a single matrix, it only
    divides them. With `scale = 1`, as the paper's Figure 1 prints its loss, every threshold is half as large: its value
    vanishes at `lam >= 2 s`, not at `lam >= s` as the text says.

    Arguments:
        target: what the product is trained towards.
        decay: one or several coefficients, trained side by side.
        factors: `L`.
        penalty: what is charged.
        convention: whether the penalty on factors carries a half.
        scale: of the squared error.
        rank: the inner width; the smaller side of the target by default.
        start: the standard deviation of the factors' entries.
        seed: of the start.
        most_steps: give up afterwards; see `residual`.

    >>> ends = equilibria(torch.diag(torch.tensor([1.0, 0.5, 0.25])), decay=[0.0, 0.3])
    >>> ends.values.simulated.mul(1000).round().div(1000).tolist(), ends.values.error < 1e-6
    ([[1.0, 0.5, 0.25], [0.7, 0.2, 0.0]], True)
    """
    wanted = matrix(target, "the target")
    coefficients = torch.tensor([decay] if isinstance(decay, (int, float)) else list(decay), dtype=torch.float64)
    inner = min(wanted.shape) if rank is None else rank
    if not len(coefficients) or factors < 1 or not scale > 0 or inner < 1:
        raise UserError(
            f"{len(coefficients)} decays, {factors} factors of width {inner} and scale {scale:g} were given: give at "
            "least one decay, one factor, a width of one and a positive scale"
        )
    pressures = torch.tensor(
        [
            convention.pressure(one) if penalty is Penalty.FACTORS else checked_decay(one)
            for one in coefficients.tolist()
        ],
        dtype=torch.float64,
    )
    widths = [wanted.shape[0], *[inner] * (factors - 1), wanted.shape[1]]
    generator = torch.Generator().manual_seed(seed)
    chain = [
        (start * torch.randn(rows, columns, generator=generator, dtype=torch.float64)).repeat(len(coefficients), 1, 1)
        for rows, columns in pairwise(widths)
    ]
    on_factors = pressures if penalty is Penalty.FACTORS else torch.zeros_like(pressures)
    on_product = pressures if penalty is Penalty.PRODUCT else torch.zeros_like(pressures)
    chain, residual, steps = _trained(chain, wanted, on_factors, on_product, scale, most_steps)
    product = _multiplied(chain)
    values = torch.linalg.svdvals(product)[..., :inner]
    best, live = _predicted(torch.linalg.svdvals(wanted)[:inner], on_factors, on_product, scale, factors)
    charged = (on_factors > 0).double()
    schatten = values.clamp_min(0).pow(2 / factors).sum(-1)
    squares = torch.stack([one.square().sum((-2, -1)) for one in chain]).mean(0)
    return Equilibria(
        SideBySide(torch.where((live > best) & (values > live / 2), live, best), simulated=values),
        SideBySide(schatten * charged, simulated=squares * charged),
        best=best,
        decays=coefficients,
        factors=tuple(chain),
        residual=residual,
        steps=steps,
    )


def _predicted(
    target: Tensor, on_factors: Tensor, on_product: Tensor, scale: float, factors: int
) -> tuple[Tensor, Tensor]:
    """The global minimum for every coefficient, and the local one away from zero.

    Both penalties are measured against the loss's curvature, `2 scale`.
    """
    best, live = [], []
    for charged, whole in zip((on_factors / (2 * scale)).tolist(), (on_product / (2 * scale)).tolist(), strict=True):
        best.append(ridge(target, whole) if whole else schatten_shrinkage(target, charged, factors=factors))
        live.append(best[-1] if whole else live_values(target, charged, factors=factors))
    return torch.stack(best), torch.stack(live)


def _trained(
    chain: list[Tensor], target: Tensor, on_factors: Tensor, on_product: Tensor, scale: float, most_steps: int
) -> tuple[list[Tensor], Tensor, int]:
    on_factors, on_product = on_factors[:, None, None], on_product[:, None, None]
    largest = max(
        float(torch.linalg.matrix_norm(_multiplied(chain), 2).max()), float(torch.linalg.matrix_norm(target, 2))
    )
    depth = len(chain)
    # The curvature along balanced factors of the largest value, and what the penalties add.
    bend = depth * max(largest, 1.0) ** (2 - 2 / depth)
    rate = 0.4 / float((2 * scale + on_product.max()) * bend + on_factors.max())
    steps, sizes = 0, torch.tensor([torch.inf])
    for steps in range(1, most_steps + 1):
        product = _multiplied(chain)
        force = 2 * scale * (product - target) + on_product * product
        gradients = []
        for place, one in enumerate(chain):
            found = force if place == 0 else _multiplied(chain[:place]).mT @ force
            if place + 1 < depth:
                found = found @ _multiplied(chain[place + 1 :]).mT
            gradients.append(found + on_factors * one)
        chain = [one - rate * gradient for one, gradient in zip(chain, gradients, strict=True)]
        if steps % PATIENCE == 0 or steps == most_steps:
            sizes = torch.stack([one.abs().amax((-2, -1)) for one in gradients]).amax(0)
            if bool((sizes < SETTLED * largest).all()):
                break
    if not bool(sizes.isfinite().all()):
        raise UserError(f"training diverged within {steps} steps: give a smaller start than the one that began it")
    return chain, sizes, steps


def _multiplied(chain: Sequence[Tensor]) -> Tensor:
    product = chain[0]
    for one in chain[1:]:
        product = product @ one
    return product
