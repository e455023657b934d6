"""A name of many components in a narrow column: broken behind its dots, not in the middle of a word."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

# Below this no column of names gets narrower while others have room.
LEAST = 12


@dataclass(frozen=True)
class Dotted:
    """A name such as `encoder.layer.0.attention.self.query` as a cell of a table."""

    name: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max(map(cell_len, _pieces(self.name)), default=1)
        return Measurement(min(longest, LEAST), max(cell_len(self.name), 1)).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [""]
        for piece in _pieces(self.name):
            if lines[-1] and cell_len(lines[-1] + piece) > options.max_width:
                lines.append("")
            lines[-1] += piece
        yield Text("\n".join(lines), overflow="fold")


def _pieces(name: str) -> list[str]:
    return re.findall(r"[^.]*\.|[^.]+", name)
