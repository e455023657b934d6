"""One progress bar for all commands: on stderr, and only where someone is looking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(*, quiet: bool, in_bytes: bool = True) -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar with the thing at hand and the time left; yields what a computation calls with (name, done, total)."""
    from rich.console import Console
    from rich.markup import escape
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

        def show(name: str, done: int, total: int) -> None:
            # The description is read as markup, which a name out of a file is not to be.
            bar.update(task, description=escape(printable(name, limit=40)), completed=done, total=total)

        yield show
