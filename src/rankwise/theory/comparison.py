"""Predicted against measured stage times: what a finite initialization adds, and which stages it cannot separate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.path import Path

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

# A newcomer that grew by fewer e-foldings than this since the stage before was not small then: the two overlap.
FOLDINGS = 3.0


class Run(Protocol):
    """What is compared: a `Flow`, or a `Descent` of plain gradient descent."""

    @property
    def log_alpha(self) -> float: ...

    def stage_times(self, path: Path) -> Tensor: ...


@dataclass(frozen=True)
class Comparison:
    """Stage times of runs at several alphas against the prediction of their limit.

    At finite alpha `t_k = T_k log(1/alpha) + C_k + ...`, so `t_k / log(1/alpha)` misses `T_k` by `C_k / log(1/alpha)`,
    while the slope between two alphas does not.

    Arguments:
        predicted: `T_k`, in rescaled time.
        log_alphas: of the runs, the largest alpha first.
        measured: `t_k / log(1/alpha)` of every run; NaN for stages that it did not reach.
        slopes: `dt_k / dlog(1/alpha)` between each run and the next: to be `T_k`.
        offsets: `C_k`, in unscaled time, from the smallest alpha that reached the stage.
        foldings: how many e-foldings each newcomer grew since the stage before.
    """

    predicted: Float[Tensor, " stages"]
    log_alphas: Float[Tensor, " runs"] = field(kw_only=True)
    measured: Float[Tensor, "runs stages"] = field(kw_only=True)
    slopes: Float[Tensor, "between stages"] = field(kw_only=True)
    offsets: Float[Tensor, " stages"] = field(kw_only=True)
    foldings: Float[Tensor, "runs stages"] = field(kw_only=True)

    @property
    def ratios(self) -> Float[Tensor, "runs stages"]:
        """Measured over predicted: 1 in the limit, only logarithmically."""
        return self.measured / self.predicted

    @property
    def slope_errors(self) -> Float[Tensor, "between stages"]:
        """How far each slope is from the predicted time, as a share of it."""
        return (self.slopes / self.predicted - 1).abs()

    @property
    def error_bars(self) -> Float[Tensor, "runs stages"]:
        """`|C_k| / log(1/alpha)`: how far a measured time is expected to be from its limit."""
        return self.offsets.abs() / -self.log_alphas[:, None]

    @property
    def inseparable(self) -> Bool[Tensor, "runs stages"]:
        """Stages that overlap with the one before at this alpha: their order and times are not to be compared."""
        return self.foldings < FOLDINGS

    def table(self) -> Table:
        """A row for each stage, a column for each alpha; `~` marks stages that overlap with the one before."""
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left")
        names = [f"alpha 1e{value / torch.log(torch.tensor(10.0)).item():.4g}" for value in self.log_alphas]
        for name in ("stage", "predicted", *names, "slope", "C"):
            table.add_column(name, justify="right")
        for stage, predicted in enumerate(self.predicted):
            cells = [
                f"{'~' if overlap else ''}{_shown(value)}"
                for value, overlap in zip(self.measured[:, stage], self.inseparable[:, stage], strict=True)
            ]
            slope = _shown(self.slopes[-1, stage]) if len(self.slopes) else "-"
            table.add_row(str(stage + 1), _shown(predicted), *cells, slope, _shown(self.offsets[stage], 3))
        table.caption = Text(
            f"times over log(1/alpha), expected within |C| / log(1/alpha) of the prediction; ~ fewer than {FOLDINGS:g} "
            "e-foldings after the stage before; - not reached; slope between the two smallest alphas"
        )
        return table

    def __rich__(self) -> Table:
        return self.table()


def _shown(value: Tensor, digits: int = 5) -> str:
    return f"{value:.{digits}g}" if bool(value.isfinite()) else "-"


def compare(path: Path, runs: Sequence[Run]) -> Comparison:
    """Hold the stage times of one or more runs against a greedy path.

    Arguments:
        path: the prediction.
        runs: flows (or plain gradient descents) of the same problem, at different alphas.

    Returns:
        Everything side by side, the largest alpha first; `print` it with rich, or read its tensors.
    """
    if not runs:
        raise UserError("no runs were given: compare(path, [flow(...), ...])")
    ordered = sorted(runs, key=lambda run: -run.log_alpha)
    log_alphas = torch.tensor([run.log_alpha for run in ordered], dtype=torch.float64)
    if len(set(log_alphas.tolist())) < len(ordered):
        raise UserError("two of the runs have the same alpha: give each alpha once, slopes are taken between them")
    spans = -log_alphas[:, None]
    measured = torch.stack([run.stage_times(path) for run in ordered])
    times = measured * spans
    predicted = path.times
    late = times - predicted * spans
    reached = late.isfinite()
    # The smallest alpha is the last row: of each column, the last entry that is there.
    last = torch.where(reached, torch.arange(len(ordered))[:, None], -1).amax(0)
    offsets = torch.where(last >= 0, late.gather(0, last.clamp_min(0)[None])[0], torch.nan)
    distances = torch.tensor([stage.distance for stage in path.stages], dtype=torch.float64)
    return Comparison(
        predicted,
        log_alphas=log_alphas,
        measured=measured,
        slopes=times.diff(dim=0) / spans.diff(dim=0),
        offsets=offsets,
        foldings=distances * spans,
    )
