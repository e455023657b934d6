"""Whether a problem meets the assumptions of the theorem, tested numerically along its path."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.path import Path, Plateau, Stage
from rankwise.theory.problem import Problem
from rankwise.theory.settle import settle

if TYPE_CHECKING:
    from jaxtyping import Float

# A plateau was found again when all products are this close, as a share of the largest.
SAME = 1e-7
# A gradient is that of its loss when central differences agree to this share.
GRADIENT = 1e-5
# A second derivative that jumps jumps as far on a four times finer grid; a continuous one a quarter as far.
JUMP = 0.6
COARSE, FINE = 16, 64


@dataclass(frozen=True)
class StageCheck:
    """The assumptions at one stage.

    Arguments:
        margin: by how much the winner arrived first, as a share of the stage's time (4.2); infinite without a rival.
        leaving: the smallest force on a coordinate that just left the support, as a share of the largest force; it must
            not be zero (4.2). Infinite where none left.
        curvature: the smallest eigenvalue of the Hessian on the support: a strict minimum (4.3).
        returned: how far from the plateau perturbed copies of it end (4.3, Figure 9), the worst of all trials.
        repeated: how far from it stage B ends from perturbed starts (4.4, Figure 10), the worst of all trials.
    """

    margin: float
    leaving: float = field(kw_only=True)
    curvature: float = field(kw_only=True)
    returned: float = field(kw_only=True)
    repeated: float = field(kw_only=True)

    @property
    def holds(self) -> bool:
        """Whether all of it holds."""
        return (
            self.margin > 0
            and self.leaving > 1e-8
            and self.curvature > 0
            and self.returned < SAME
            and self.repeated < SAME
        )


@dataclass(frozen=True)
class Check:
    """Assumptions 2.1 and 4.2 to 4.4 along a path; numbers, not proofs.

    Arguments:
        stages: one check for each.
        gradient_error: how far the gradient is from differences of the loss (2.1); NaN without a loss.
        jump: how far the second derivative jumps along lines through zero on a fine grid, over a coarse one: about a
            quarter for a continuous one, one for a kink (2.1).
        imbalance: the smallest `| |u0| - |v0| |` over the largest weight (4.2); NaN where no start was given.
        noise: of the perturbations.
        trials: how many.
    """

    stages: tuple[StageCheck, ...]
    gradient_error: float = field(kw_only=True)
    jump: float = field(kw_only=True)
    imbalance: float = field(kw_only=True)
    noise: float = field(kw_only=True)
    trials: int = field(kw_only=True)

    @property
    def holds(self) -> bool:
        """Whether everything that was tested holds."""
        smooth = not self.gradient_error > GRADIENT and self.jump < JUMP
        return smooth and self.imbalance != 0 and all(stage.holds for stage in self.stages)

    def table(self) -> Table:
        """A row for each stage, and what holds for the problem as a whole below."""
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left")
        for name in ("stage", "margin (4.2)", "curvature (4.3)", "returned (4.3)", "repeated (4.4)", "holds"):
            table.add_column(name, justify="right")
        for number, stage in enumerate(self.stages, 1):
            numbers = (stage.margin, stage.curvature, stage.returned, stage.repeated)
            table.add_row(str(number), *(f"{one:.2g}" for one in numbers), "yes" if stage.holds else "NO")
        table.caption = Text(
            f"{self.trials} perturbations of {self.noise:g} each. Gradient against loss: {self.gradient_error:.0e}; "
            f"jumps of the second derivative, fine over coarse: {self.jump:.2f}"
            + ("" if math.isnan(self.imbalance) else f"; smallest imbalance of the start: {self.imbalance:.1e}")
        )
        return table

    def __rich__(self) -> Table:
        return self.table()


def check(
    problem: Problem,
    path: Path,
    *,
    start: tuple[Tensor, Tensor] | None = None,
    noise: float = 0.05,
    trials: int = 5,
    seed: int = 0,
) -> Check:
    """Test the assumptions of the theorem along a path.

    - 2.1, two derivatives: the gradient is that of the loss; the second derivative does not jump along random lines.
    - 4.2, no ties: the winner of each race leads, whoever left the support is pushed away, `|u0| != |v0|`.
    - 4.3, strict minima: the Hessian on the support is positive, and perturbed plateaus return to themselves.
    - 4.4, robust activations: from perturbed plateaus with a newcomer of random small size, stage B ends where it did.

    Arguments:
        problem: the loss.
        path: `greedy(problem)`.
        start: `(u0, v0)`, to look at its imbalance.
        noise: the standard deviation of the perturbations of `u = sqrt|q|` on the support.
        trials: how many for each plateau.
        seed: of the noise.
    """
    if trials < 1 or not noise > 0:
        raise UserError(f"{trials} perturbations of size {noise} were asked for: give positive numbers")
    generator = torch.Generator().manual_seed(seed)
    size = float(path.products.abs().max()) or 1.0
    lines = torch.randn(3, problem.size, generator=generator, dtype=torch.float64)
    lines *= size / lines.norm(dim=1, keepdim=True)
    return Check(
        tuple(_stages(problem, path, noise, trials, generator)),
        gradient_error=max(_gradient_error(problem, line) for line in lines),
        jump=max(_jump(problem, line) for line in lines),
        imbalance=_imbalance(start),
        noise=noise,
        trials=trials,
    )


def _stages(
    problem: Problem, path: Path, noise: float, trials: int, generator: torch.Generator
) -> Iterator[StageCheck]:
    largest = max(float(one.force.abs().max()) for one in path.plateaus)
    for before, stage in zip(path.plateaus, path.stages, strict=False):
        leaving = stage.force[list(stage.dropped)].abs()
        yield StageCheck(
            stage.margin / stage.time,
            leaving=float(leaving.min()) / largest if len(leaving) else math.inf,
            curvature=stage.curvature,
            returned=_worst(problem, _around(stage.product, noise, trials, generator), stage, largest),
            repeated=_worst(problem, _starts(before, stage, noise, trials, generator), stage, largest),
        )


def _around(products: Tensor, noise: float, trials: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Copies of a plateau with noise on `u` of its support, and `v` to match."""
    for _ in range(trials):
        drawn = noise * torch.randn(len(products), generator=generator, dtype=torch.float64)
        yield products.sign() * (products.abs().sqrt() + drawn).square()


def _starts(before: Plateau, stage: Stage, noise: float, trials: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Perturbed plateaus, each with a newcomer whose `u` is anything between next to nothing and the noise."""
    for products in _around(before.product, noise, trials, generator):
        decades = 6 * torch.rand((), generator=generator, dtype=torch.float64)
        products[stage.coordinate] = stage.sign * (noise * 10**-decades) ** 2
        yield products


def _worst(problem: Problem, starts: Iterator[Tensor], stage: Stage, largest: float) -> float:
    size, worst = float(stage.product.abs().max()), 0.0
    for start in starts:
        settled = settle(problem, start, largest_force=largest)
        if settled.failure is not None:
            return math.inf
        worst = max(worst, float((settled.products - stage.product).abs().max()) / size)
    return worst


def _gradient_error(problem: Problem, line: Float[Tensor, " p"]) -> float:
    """Of the derivative along a line, half-way out."""
    if problem.loss is None:
        return math.nan
    middle, step = line / 2, 1e-5 * line
    measured = (problem.value(middle + step) - problem.value(middle - step)) / 2e-5
    force = problem.force(middle)
    return abs(measured + float(force @ line)) / max(float(force.norm() * line.norm()), 1e-300)


def _jump(problem: Problem, line: Float[Tensor, " p"]) -> float:
    """The largest jump of the second derivative along a line through zero: on a fine grid over on a coarse one."""
    slopes = {}
    for count in (COARSE, FINE):
        places = torch.linspace(-1, 1, count + 1, dtype=torch.float64)
        pulls = torch.stack([problem.force(place * line) @ line for place in places])
        slopes[count] = pulls.diff() / places.diff()
    jumps = {count: float(values.diff().abs().max()) for count, values in slopes.items()}
    # A second derivative that is constant to eight digits has only rounding to jump by.
    if jumps[COARSE] <= 1e-8 * float(slopes[COARSE].abs().max()):
        return 0.0
    return jumps[FINE] / jumps[COARSE]


def _imbalance(start: tuple[Tensor, Tensor] | None) -> float:
    if start is None:
        return math.nan
    u, v = (torch.as_tensor(one, dtype=torch.float64).abs() for one in start)
    return float((u - v).abs().min() / torch.maximum(u, v).max())
