"""How a command runs a scan: with a bar, with a journal, and so that Ctrl-C or an error loses nothing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rankwise.errors import CheckpointError
from rankwise.text import printable

if TYPE_CHECKING:
    from rankwise.scans.journal import Journal
    from rankwise.scans.scan import Scan

STOPPED = 130


def run(opened: Scan, journal: Journal, *, quiet: bool) -> dict[str, Any]:
    """Compute a scan, keeping what is found in its journal.

    Arguments:
        opened: the scan.
        journal: what was found before, and where it is kept.
        quiet: show no bar.

    Returns:
        the record; where Ctrl-C stopped the work, what was found until then, with `complete` false.
    """
    from rankwise.cli.progress import progress

    if journal.problem is not None:
        _say(f"nothing can be kept for --resume in {journal.problem} (XDG_CACHE_HOME names another place)")
    with progress(quiet=quiet) as bar:
        try:
            return opened.run(progress=bar, journal=journal)
        except KeyboardInterrupt:
            done = f"{_found(opened)} of {opened.size} {'sites' if opened.base is None else 'products and matrices'}"
            _say(f"stopped after {done}; what was found {_kept(journal)}")
            return opened.record
        except CheckpointError as error:
            if not _found(opened):
                raise
            raise CheckpointError(f"{error} (what was found until then {_kept(journal)})") from None


def announce(journal: Journal, *, resume: bool) -> None:
    """Say what `--resume` found."""
    if resume and journal.resumed:
        _say(f"going on from {journal.resumed} sites that an interrupted run found")
    elif resume:
        _say("nothing was interrupted: starting from the beginning")


def _found(opened: Scan) -> int:
    return len(opened.record["sites"]) + len(opened.record.get("matrices") or ())


def _kept(journal: Journal) -> str:
    if journal.problem is not None:
        return f"could not be kept ({journal.problem})"
    return "is kept: the same command with --resume goes on from there"


def _say(text: str) -> None:
    print(f"rankwise: {printable(text, limit=1000)}", file=sys.stderr)
