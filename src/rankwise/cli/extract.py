"""`rankwise extract-lora`: a fine-tune as a PEFT adapter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number


def extract_lora(
    base: str,
    tuned: str,
    out: Path,
    /,
    *,
    rank: int | None = None,
    energy: float | None = None,
    size: Annotated[str | None, Parameter(name="--bytes")] = None,
    dtype: str = "float32",
    prefix: str = "",
    json: bool = False,
    rows: Annotated[int, Parameter(validator=Number(gte=0))] = 60,
) -> None:
    """Write a fine-tune as a PEFT adapter.

    The adapter holds the best approximation of the change of each linear layer from BASE to TUNED: of one rank
    everywhere, of the least rank that keeps a share of its energy, or within a number of bytes, spent where they save
    most. What it misses of every matrix is said, and kept beside it in rankwise.json.

    PEFT loads it onto a model whose layers are named as in BASE.

    ```
    rankwise extract-lora path/to/base path/to/tuned path/to/adapter --energy 0.95
    model = PeftModel.from_pretrained(model, "path/to/adapter")
    ```

    Parameters
    ----------
    base
        The checkpoint before.
    tuned
        The checkpoint after.
    out
        The folder to write, which must not exist yet, or be empty.
    rank
        One rank for every matrix.
    energy
        The share of each matrix's energy to keep, as 0.95.
    size
        The most that the adapter's file may take, as 8MB: one budget over all matrices.
    dtype
        The type of the adapter's weights: float32, bfloat16 or float16.
    prefix
        What the class that you load the adapter onto puts before the names in BASE, as in transformer.
    json
        Print what was kept as JSON on stdout and nothing else there.
    rows
        The most rows of the table to show.
    """
    import json as _json

    from rankwise.cli.progress import progress
    from rankwise.errors import UserError
    from rankwise.scans.difference import diff
    from rankwise.scans.lora import DTYPES
    from rankwise.scans.lora import extract_lora as extract

    if dtype not in DTYPES:
        raise UserError(f"--dtype is one of {', '.join(DTYPES)}, not '{dtype}'")
    found = diff(base, tuned)
    with progress(quiet=json, in_bytes=False) as bar:
        extraction = extract(
            found, out, rank=rank, energy=energy, size=size, dtype=DTYPES[dtype], prefix=prefix, progress=bar
        )
    if json:
        print(_json.dumps(extraction.record(), allow_nan=False))
        return
    from rich.console import Console

    Console().print(extraction.table(rows=rows))
    print(f"wrote {extraction.folder}", file=sys.stderr)
