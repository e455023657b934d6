"""`rankwise certify`: prove layouts on the real modules of transformers' model types, or print what was proved."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from rankwise.errors import UserError

if TYPE_CHECKING:
    from rankwise.sites.certify.row import Row
    from rankwise.sites.certify.tables import Line


def certify(
    *types: str,
    release: bool = False,
    write: Path | None = None,
    markdown: Path | None = None,
    journal: Path | None = None,
    processes: Annotated[int, Parameter(validator=Number(gte=1))] = 2,
) -> int:
    """Prove that attention is read with the right layouts, on small random models of transformers' types.

    A site passes where its formula gives the logits (or the outputs) of the real module, with every parameter random
    and every size different. The exit code is 1 where a site of a type does not pass.

    Without types it prints what was proved for this release. With --release it proves every type again, with the
    switches of its configuration turned too: this is how the certificates that ship with Rankwise are made. It takes
    long, so give it a --journal.

    Examples: rankwise certify | rankwise certify llama gemma2 | rankwise certify --release --journal rows.jsonl

    Parameters
    ----------
    types
        Model types, as config.json names them.
    release
        Certify all types, in all variants.
    write
        With --release: write the release certificates to this file.
    markdown
        Write the table to this file, as the documentation keeps it.
    journal
        With --release: keep what was found in this file as it comes, and go on from there after an interruption.
    processes
        With --release: how many processes to use.
    """
    if types and (release or write or markdown or journal):
        raise UserError("--release, --write, --markdown and --journal are about all types: give them without names")
    if (write or journal) and not release:
        raise UserError("--write and --journal keep what a run over all types finds: give --release with them")
    for file in filter(None, (write, markdown, journal)):
        if not file.absolute().parent.is_dir():
            raise UserError(f"{file} cannot be written: there is no folder {file.absolute().parent}")
    if types:
        return _types(types)
    return _release(write, markdown, journal, processes) if release else _shipped(markdown)


def _types(types: Sequence[str]) -> int:
    from rich.console import Console

    from rankwise.sites.certify.tiny import known_types
    from rankwise.sites.certify.trial import attempt

    known = known_types(types)
    console = Console()
    certified = True
    for model_type in known:
        trial = attempt(model_type)
        console.print(f"{model_type}: {trial.reason or trial.label}", markup=False, highlight=False)
        if trial.certificates is not None:
            console.print(trial.certificates)
        for parameter, reason in trial.unread.items():
            console.print(f"unread {parameter}: {reason}", markup=False, highlight=False)
        certified = certified and bool(trial.certificates)
    return 0 if certified else 1


def _shipped(markdown: Path | None) -> int:
    from rankwise.sites.certify.release import shipped
    from rankwise.sites.certify.tables import shipped_lines

    return _told(shipped_lines(), shipped().get("transformers", ""), markdown)


def _release(write: Path | None, markdown: Path | None, journal: Path | None, processes: int) -> int:
    from rankwise.sites.certify.ship import release_table
    from rankwise.sites.certify.survey import survey
    from rankwise.sites.certify.tables import lines
    from rankwise.sites.certify.tiny import model_types

    types = model_types()
    with _shown(survey(types, processes=processes, journal=journal), len(types)) as coming:
        found = sorted(coming, key=lambda row: row.model_type)
    made = release_table(found)
    if write is not None:
        write.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return _told(lines(found), made["transformers"], markdown)


def _told(every: Sequence[Line], version: str, markdown: Path | None) -> int:
    """Print the table, or write it to a file."""
    from rich.console import Console

    from rankwise.sites.certify.tables import markdown_table, summary, table

    console = Console(width=int(os.environ.get("COLUMNS", "160")))
    if markdown is not None:
        markdown.write_text(markdown_table(every, version), encoding="utf-8")
        console.print(summary(every), highlight=False)
    else:
        console.print(table(every))
    return 0 if any(line.proved for line in every) else 1


@contextmanager
def _shown(coming: Iterator[Row], types: int) -> Iterator[Iterator[Row]]:
    """The same rows, with their types counted on stderr as they pass."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("model types"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=types)

        def counted() -> Iterator[Row]:
            seen: set[str] = set()
            for row in coming:
                seen.add(row.model_type)
                progress.update(task, completed=len(seen))
                yield row

        yield counted()
