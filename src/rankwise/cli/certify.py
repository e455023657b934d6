"""`rankwise certify`: prove layouts on the real modules of transformers' model types, or print what was proved."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rankwise.errors import UserError


def certify(
    *types: str,
    release: bool = False,
    write: Annotated[Path | None, Parameter()] = None,
    markdown: Annotated[Path | None, Parameter()] = None,
    processes: int = 2,
) -> int:
    """Certify model types on small random models of them, or all that the installed transformers builds.

    Parameters
    ----------
    types
        Model types, as `config.json` names them.
    release
        Certify every type and every variant of its configuration, as for a release.
    write
        With --release: write the release certificates to this file.
    markdown
        With --release: write the table to this file, as the documentation keeps it.
    processes
        How many processes to use.
    """
    if bool(types) == release:
        raise UserError("name the model types to certify, or give --release for all of them")
    if (write or markdown) and not release:
        raise UserError("--write and --markdown keep the table of all types: give --release with them")
    if processes < 1:
        raise UserError(f"--processes is at least 1, got {processes}")
    return _release(write, markdown, processes) if release else _types(types)


def _types(types: Sequence[str]) -> int:
    from rich.console import Console

    from rankwise.sites.certify.tiny import model_types
    from rankwise.sites.certify.trial import attempt

    known = set(model_types())
    if unknown := [each for each in types if each not in known]:
        raise UserError(f"transformers has no model type '{unknown[0]}': it has {len(known)}, such as bert or llama")
    console = Console()
    certified = True
    for model_type in types:
        trial = attempt(model_type)
        console.print(f"[bold]{model_type}[/bold]: {trial.label or trial.reason}")
        if trial.certificates is not None:
            console.print(trial.certificates)
        for parameter, reason in trial.unread.items():
            console.print(f"unread {parameter}: {reason}", markup=False, highlight=False)
        certified = certified and bool(trial.certificates)
    return 0 if certified else 1


def _release(write: Path | None, markdown: Path | None, processes: int) -> int:
    from rich.console import Console

    from rankwise.sites.certify.survey import release_table, survey
    from rankwise.sites.certify.tables import markdown_table, table
    from rankwise.sites.certify.tiny import model_types

    found = sorted(survey(model_types(), processes=processes), key=lambda row: row.model_type)
    Console(width=int(os.environ.get("COLUMNS", "160"))).print(table(found))
    if write is not None:
        write.write_text(json.dumps(release_table(found), indent=1) + "\n", encoding="utf-8")
    if markdown is not None:
        markdown.write_text(markdown_table(found), encoding="utf-8")
    return 0 if any(row.by_value for row in found) else 1
