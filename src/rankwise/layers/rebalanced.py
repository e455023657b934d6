"""What a rebalancing did to each product of a model, and why it left others alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rankwise.layers.gauges import Shares
from rankwise.layers.optimizer_state import State
from rankwise.sites.sites import Unread

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Moved:
    """One product that was rebalanced.

    Arguments:
        site: its name.
        gauge: the moves that it allowed.
        before, after: what decay charges its factors, and how much of that was gap.
        change: how far the stored product moved, `|P' - P|_F / |P|_F`: rounding in the type of the parameters.
        state: what became of the optimizer's memory of its parameters.
        note: what a reader should know.
    """

    site: str
    gauge: str
    before: Shares
    after: Shares
    change: float
    state: State | None
    note: str = ""


@dataclass(frozen=True)
class LeftAlone:
    """One product, or one parameter that no site reads, that was not moved, and why."""

    site: str
    reason: str


@dataclass(frozen=True)
class Rebalanced:
    """The outcome of `balance_`.

    Arguments:
        moved: what was rebalanced.
        left_alone: what was not, each with the reason.
        unread: the parameters that no site covers, with the reason.
    """

    moved: tuple[Moved, ...]
    left_alone: tuple[LeftAlone, ...] = field(kw_only=True)
    unread: tuple[Unread, ...] = field(kw_only=True, default=())

    def __getitem__(self, site: str) -> Moved | LeftAlone:
        return next(each for each in self if each.site == site)

    def __iter__(self) -> Iterator[Moved | LeftAlone]:
        yield from self.moved
        yield from self.left_alone

    def __len__(self) -> int:
        return len(self.moved) + len(self.left_alone)

    @property
    def drop(self) -> float:
        """By how much the half-sum of all squared norms fell: `lambda` times this is what decay charges less."""
        return sum(each.before.half_sum - each.after.half_sum for each in self.moved)

    def table(self) -> Table:
        """Every product that was moved: how, the gap over the half-sum before and after, and the optimizer's memory."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=f"{len(self.moved)} products rebalanced")
        for column in ("site", "moves", "gap", "after", "change", "optimizer"):
            right = column in ("gap", "after", "change")
            table.add_column(column, justify="right" if right else "left", no_wrap=right, overflow="fold")
        for each in self.moved:
            gaps = (f"{each.before.relative:.1e}", f"{each.after.relative:.1e}", f"{each.change:.0e}")
            table.add_row(*map(Text, (each.site, each.gauge, *gaps, each.state or "-")))
        return table

    def reasons(self) -> Table:
        """Everything else: what was left alone, what no site reads, and what there is to know of what was moved."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=f"{len(self.left_alone)} products left alone, {len(self.unread)} parameters unread")
        for column in ("", "why"):
            table.add_column(column)
        said: dict[str, list[str]] = defaultdict(list)
        for each in self.left_alone:
            said[each.reason].append(each.site)
        for each in self.unread:
            said[f"unread: {each.reason}"].append(each.parameter)
        for each in self.moved:
            if each.note:
                said[f"moved, but {each.note}"].append(each.site)
        for reason, names in said.items():
            table.add_row(Text("\n".join(names)), Text(reason))
        return table

    def __rich__(self) -> RenderableType:
        from rich.console import Group

        reasons = self.reasons()
        return Group(self.table(), reasons) if reasons.row_count else self.table()

    def __repr__(self) -> str:
        return f"Rebalanced({len(self.moved)} products; {len(self.left_alone)} left alone, {len(self.unread)} unread)"
