"""What a theorem says and what a simulation did, side by side: the shape of every result of the lab's experiments."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor

from rankwise.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Float

# So many numbers of a tensor are written out; of longer ones, the largest.
SHOWN = 6


@dataclass(frozen=True)
class SideBySide:
    """One quantity, as predicted and as simulated.

    >>> import torch
    >>> both = SideBySide(torch.tensor([1.0, 2.0]).double(), simulated=torch.tensor([1.0, 2.5]).double())
    >>> both.error, both.relative_error
    (0.5, 0.25)
    """

    predicted: Float[Tensor, "*shape"]
    simulated: Float[Tensor, "*shape"]

    def __post_init__(self) -> None:
        if self.predicted.shape != self.simulated.shape:
            raise UserError(
                f"a prediction of shape {tuple(self.predicted.shape)} stands beside a simulation of shape "
                f"{tuple(self.simulated.shape)}: give one number for the other"
            )

    @property
    def error(self) -> float:
        """The largest absolute difference; NaN if any number is."""
        return float((self.simulated - self.predicted).abs().max()) if self.predicted.numel() else 0.0

    @property
    def relative_error(self) -> float:
        """The error over the largest predicted number; over 1 where everything predicted is zero."""
        scale = float(self.predicted.abs().max()) if self.predicted.numel() else 0.0
        return self.error / (scale or 1.0)

    def __repr__(self) -> str:
        return (
            f"SideBySide(predicted={_short(self.predicted)}, simulated={_short(self.simulated)}, "
            f"relative_error={self.relative_error:.1e})"
        )


@dataclass(frozen=True)
class Experiment:
    """Base of the experiments' records: knows which of its fields are predictions beside simulations."""

    @property
    def comparisons(self) -> dict[str, SideBySide]:
        """The fields that hold a prediction beside a simulation, by name."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, SideBySide)}

    def table(self) -> Table:
        """A row for each comparison."""
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column("quantity")
        for name in ("predicted", "simulated", "error", "relative"):
            table.add_column(name, justify="right")
        for name, both in self.comparisons.items():
            table.add_row(
                name.replace("_", " "),
                _short(both.predicted),
                _short(both.simulated),
                f"{both.error:.1e}",
                f"{both.relative_error:.1e}",
            )
        return table

    def __rich__(self) -> Table:
        return self.table()


def _short(values: Tensor) -> str:
    flat = values.flatten()
    if len(flat) > SHOWN:
        return f"{len(flat)} of at most {float(flat.abs().max()):.6g}"
    return " ".join(f"{value:.6g}" for value in flat.tolist())
