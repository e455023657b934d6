"""A run in the terminal: the loss, the rank of every layer, alarms, and the time left."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from datetime import timedelta
from statistics import mean
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rankwise.text import printable
from rankwise.watch.alarms import in_short
from rankwise.watch.recorder import Outcome
from rankwise.watch.rows import Row

# From no rank left to all of the start's, and more.
SHADES = ("red", "dark_orange", "yellow", "green", "cyan")
MOST_LAYERS, LOSSES, MOST_ALARMS = 24, 40, 4
BARS = "▁▂▃▄▅▆▇█"


class Panel:
    """A live panel for `Monitor(..., sinks=[panel])`; where there is no terminal, a line for each snapshot.

    Every cell is a layer: its mean effective rank, coloured by its share of that at the run's first snapshot.

    Arguments:
        total: how many steps the training has, for the time left.
        console: where to draw, by default the terminal's error stream, so that what the training prints is its own.
    """

    def __init__(self, *, total: int | None = None, console: Console | None = None) -> None:
        self.total, self.console = total, console or Console(stderr=True)
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._alarms: deque[str] = deque(maxlen=MOST_ALARMS)
        self._start: dict[tuple[str, str, int | None], float] = {}
        self._began: tuple[int, float] | None = None
        self._live: Live | None = None

    def write(self, outcome: Outcome) -> None:
        """Draw a snapshot."""
        if "loss" in outcome.values:
            self._losses.append(outcome.values["loss"])
        self._alarms.extend(f"step {outcome.step}: {line}" for line in in_short(outcome.alarms))
        ranks = layers(outcome.rows)
        self._start = self._start or ranks
        self._began = self._began or (outcome.step, outcome.time)
        if not self.console.is_terminal:
            self.console.print(self._line(outcome), highlight=False, soft_wrap=True)
            return
        if self._live is None:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        self._live.update(self._drawn(outcome, ranks), refresh=True)

    def close(self) -> None:
        """Leave the last picture where it is, and the terminal to others."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def __enter__(self) -> Panel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _line(self, outcome: Outcome) -> str:
        values = "  ".join(f"{name} {value:.4g}" for name, value in outcome.values.items())
        return "  ".join(filter(None, (self._progress(outcome), values)))

    def _progress(self, outcome: Outcome) -> str:
        step = f"step {outcome.step}" + (f" of {self.total}" if self.total else "")
        if self.total is None or self._began is None or outcome.step <= self._began[0]:
            return step
        pace = (outcome.time - self._began[1]) / (outcome.step - self._began[0])
        return f"{step}  {timedelta(seconds=round(pace * max(0, self.total - outcome.step)))} left"

    def _drawn(self, outcome: Outcome, ranks: Mapping[tuple[str, str, int | None], float]) -> RenderableType:
        parts: list[RenderableType] = [Text(self._progress(outcome), style="bold")]
        if self._losses:
            parts.append(Text(f"loss {self._losses[-1]:.4g}  {bars(self._losses)}"))
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        numbers = sorted({layer for _, _, layer in ranks if layer is not None})[:MOST_LAYERS]
        table.add_column("effective rank by layer", no_wrap=True)
        for layer in numbers:
            table.add_column(str(layer), justify="right")
        for of, kind in dict.fromkeys((of, kind) for of, kind, _ in ranks):
            name = kind if of == "product" else f"{kind}, change"
            # A change has no rank at the start: it is coloured by what its product had.
            cells = [
                _cell(ranks.get((of, kind, layer)), self._start.get(("product", kind, layer))) for layer in numbers
            ]
            table.add_row(printable(name), *cells)
        parts.append(table)
        parts += [Text(printable(line, limit=200), style="red") for line in self._alarms]
        return Group(*parts)


def layers(rows: Iterable[Row]) -> dict[tuple[str, str, int | None], float]:
    """The mean effective rank of the products and of the changes of each kind and layer."""
    found: dict[tuple[str, str, int | None], list[float]] = {}
    for row in rows:
        rank = row.get("effective_rank")
        if row["of"] in ("product", "change") and rank is not None and rank == rank:
            found.setdefault((row["of"], row["kind"], row["layer"]), []).append(rank)
    return {place: mean(ranks) for place, ranks in found.items()}


def bars(values: Iterable[float]) -> str:
    """Numbers as small bars, the least the lowest; those that are none are left out.

    >>> bars([1.0, 2.0, float("nan"), 3.0])
    '▁▅█'
    """
    known = [value for value in values if value == value and abs(value) != float("inf")]
    if not known:
        return ""
    low, high = min(known), max(known)
    return "".join(BARS[round((value - low) / ((high - low) or 1.0) * (len(BARS) - 1))] for value in known)


def _cell(rank: float | None, start: float | None) -> Text:
    if rank is None:
        return Text("-", style="dim")
    share = rank / start if start else 1.0
    return Text(f"{rank:.1f}", style=SHADES[min(len(SHADES) - 1, int(share * (len(SHADES) - 1)))])
