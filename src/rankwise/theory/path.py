"""What the greedy algorithm found: the plateaus that training visits as its initialization shrinks, and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor

from rankwise.theory.coordinates import Coordinate

if TYPE_CHECKING:
    from jaxtyping import Float

MOST_ENTRIES = 6
ROUNDING = 1e-20


class Ending(Enum):
    """Why a path has no further stage."""

    STATIONARY = "nothing moves any more: no idle coordinate feels a force"
    STAGES = "the number of stages that was asked for"
    LOSS = "the loss that was asked for"
    TIED = "two coordinates tie"
    UNBOUNDED = "a stage has no finite end point"
    UNSETTLED = "a stage did not come to rest"
    NOT_FINITE = "the gradient is not finite"


@dataclass(frozen=True)
class Stage:
    """One activation, and the plateau that follows it.

    Arguments:
        time: when it happens, in rescaled time `t / log(1/alpha)`.
        coordinate: who activates.
        sign: of its product.
        product: the plateau, all products; stationary on its support.
        support: the coordinates that are not zero there.
        dropped: those that left the support during this stage.
        margin: how much later the runner-up would have activated (infinite without one).
        runner_up: the runner-up.
        loss: on the plateau.
        log_scale: `b = log_alpha (u + v)` of every coordinate when the plateau begins: 0 or 2 on the support.
        force: `g` on the plateau, the speed at which `b` falls.
        curvature: the smallest eigenvalue of the Hessian of the loss on the support.
        distance: how far `b` of the newcomer was from its wall when the plateau before began. Times `log(1/alpha)`, it
            is how many e-foldings the newcomer grew between the two stages.
        place: what the newcomer is in the network, where that is known.
    """

    time: float
    coordinate: int = field(kw_only=True)
    sign: int = field(kw_only=True)
    product: Float[Tensor, " p"] = field(kw_only=True, repr=False)
    support: tuple[int, ...] = field(kw_only=True)
    dropped: tuple[int, ...] = field(kw_only=True)
    margin: float = field(kw_only=True)
    runner_up: int | None = field(kw_only=True)
    loss: float = field(kw_only=True)
    log_scale: Float[Tensor, " p"] = field(kw_only=True, repr=False)
    force: Float[Tensor, " p"] = field(kw_only=True, repr=False)
    curvature: float = field(kw_only=True)
    distance: float = field(kw_only=True)
    place: Coordinate | None = field(kw_only=True, default=None)


@dataclass(frozen=True)
class Path:
    """The stages of training in the limit of small initialization.

    Arguments:
        stages: in order of time.
        start: the plateau before the first stage: all products zero, `b = 1`.
        ending: why there are no more.
        reason: the same in words, with the coordinates and the numbers.
        tied: the coordinates that tie, where the path ended in a tie.
    """

    stages: tuple[Stage, ...]
    start: Plateau = field(kw_only=True, repr=False)
    ending: Ending = field(kw_only=True)
    reason: str = field(kw_only=True)
    tied: tuple[int, ...] = field(kw_only=True, default=())

    @property
    def complete(self) -> bool:
        """Whether the path ended where it should: at rest, or where it was asked to."""
        return self.ending in {Ending.STATIONARY, Ending.STAGES, Ending.LOSS}

    @property
    def plateaus(self) -> tuple[Plateau, ...]:
        """Every plateau from the start on, one more than there are stages."""
        later = (Plateau(stage.time, stage.product, stage.log_scale, stage.force, stage.loss) for stage in self.stages)
        return (self.start, *later)

    @property
    def times(self) -> Float[Tensor, " stages"]:
        """When each stage happens, in rescaled time."""
        return torch.tensor([stage.time for stage in self.stages], dtype=torch.float64)

    @property
    def coordinates(self) -> tuple[int, ...]:
        """Who activates at each stage."""
        return tuple(stage.coordinate for stage in self.stages)

    @property
    def products(self) -> Float[Tensor, "plateaus p"]:
        """The products of every plateau, the start first."""
        return torch.stack([one.product for one in self.plateaus])

    @property
    def losses(self) -> Float[Tensor, " plateaus"]:
        """The loss of every plateau, the start first."""
        return torch.tensor([one.loss for one in self.plateaus], dtype=torch.float64)

    def at(self, time: float) -> Plateau:
        """The plateau at a rescaled time, with `b` as it has drifted by then: what training tends to there."""
        plateau = max((one for one in self.plateaus if one.time <= time), key=lambda one: one.time, default=self.start)
        drifted = plateau.log_scale - (time - plateau.time) * plateau.force
        return Plateau(time, plateau.product, drifted, plateau.force, plateau.loss)

    def table(self) -> Table:
        """A row for each stage."""
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left")
        for name in ("", "time", "activates", "drops", "active", "margin", "curvature", "loss"):
            side = "left" if name in {"activates", "drops"} else "right"
            table.add_column(name, justify=side, overflow="fold", no_wrap=name != "drops", min_width=len(name))
        for number, stage in enumerate(self.stages, 1):
            who = f"{stage.coordinate} {'+' if stage.sign > 0 else '-'}"
            table.add_row(
                str(number),
                f"{stage.time:.5g}",
                who if stage.place is None else f"{who} {stage.place}",
                ", ".join(map(str, stage.dropped)) or "-",
                str(len(stage.support)),
                f"{stage.margin:.2g}",
                f"{stage.curvature:.3g}",
                # What rounding leaves of a loss differs from machine to machine.
                f"{0.0 if stage.loss < ROUNDING * self.start.loss else stage.loss:.3g}",
            )
        table.caption = Text(("" if self.complete else "INCOMPLETE: ") + self.reason)
        return table

    def __rich__(self) -> Table:
        return self.table()

    def __repr__(self) -> str:
        shown = ", ".join(f"{stage.time:.4g}: {stage.coordinate}" for stage in self.stages[:MOST_ENTRIES])
        more = ", ..." if len(self.stages) > MOST_ENTRIES else ""
        return f"Path({len(self.stages)} stages, {shown}{more}; {self.ending.name.lower()})"


@dataclass(frozen=True)
class Plateau:
    """A state of training in the limit: stationary products, and the log-scales that drift beneath them.

    Arguments:
        time: in rescaled time.
        product: all products.
        log_scale: `b = log_alpha (u + v)`.
        force: `g`, the speed at which `b` falls.
        loss: of the products.
    """

    time: float
    product: Float[Tensor, " p"] = field(repr=False)
    log_scale: Float[Tensor, " p"] = field(repr=False)
    force: Float[Tensor, " p"] = field(repr=False)
    loss: float
