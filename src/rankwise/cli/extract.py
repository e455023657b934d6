"""`rankwise extract-lora`: a fine-tune as a PEFT adapter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def extract_lora(
    base: str,
    tuned: str,
    out: Path,
    *,
    rank: int | None = None,
    energy: float | None = None,
    size: Annotated[str | None, Parameter(name="--bytes")] = None,
    json: bool = False,
) -> None:
    """Write the change from BASE to TUNED as a PEFT adapter, and say what it misses of every matrix.

    The adapter holds the best approximation of the change of each linear layer: of one rank everywhere, of the least
    rank that keeps a share of its energy, or within a number of bytes, spent where they save most.

    Parameters
    ----------
    base
        The checkpoint before.
    tuned
        The checkpoint after.
    out
        The folder to write, which must not exist yet.
    rank
        One rank for every matrix.
    energy
        The share of each matrix's energy to keep, as 0.95.
    size
        The size of the adapter, as 8MB: one budget over all matrices.
    json
        Print what was kept as JSON and nothing else.
    """
    import json as _json

    from rankwise.cli.progress import progress
    from rankwise.scans.difference import diff
    from rankwise.scans.lora import extract_lora as extract

    found = diff(base, tuned)
    with progress(quiet=json) as bar:
        extraction = extract(found, out, rank=rank, energy=energy, size=size, progress=bar)
    if json:
        print(_json.dumps(extraction.record(), allow_nan=False))
        return
    from rich.console import Console

    Console().print(extraction)
    print(f"wrote {extraction.folder}", file=sys.stderr)
