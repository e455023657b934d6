"""One progress bar for all commands: on stderr, and only where someone is looking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress(*, quiet: bool, in_bytes: bool = True) -> Iterator[Callable[[Any, int, int], None] | None]:
    """A bar with the thing at hand and the time left; yields what a computation calls with (thing, done, total)."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from rankwise.text import printable

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    amount = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("opening", total=None)

        def show(thing: Any, done: int, total: int) -> None:
            name = printable(getattr(thing, "name", thing), limit=40)
            bar.update(task, description=name, completed=done, total=total)

        yield show
