"""`rankwise diff`: the change of every product between two checkpoints."""

from __future__ import annotations

import json as _json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def diff(
    base: str,
    tuned: str,
    *,
    json: bool = False,
    html: Path | None = None,
    parquet: Path | None = None,
    select: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    method: str = "auto",
    tolerance: float = 1e-6,
    device: str | None = None,
    layouts: Annotated[tuple[Path, ...], Parameter(consume_multiple=False)] = (),
    rows: int = 60,
) -> None:
    """Compare two checkpoints of one architecture, product by product and matrix by matrix.

    For every product: the spectrum of its change, in a form that keeps the small singular values, and how far the
    leading directions of the change lie in those of the base. For every single matrix: the rank that a LoRA needs for
    90, 95 and 99 % of the energy of its change.

    Parameters
    ----------
    base
        The checkpoint before.
    tuned
        The checkpoint after.
    json
        Print the record as JSON and nothing else.
    html
        Write the comparison as one self-contained page.
    parquet
        Write one row for each head, spectra included.
    select
        Which sites: kind=qk+ov,layer=0-3,stack=decoder,name=layers.*.qk
    method
        auto, gram32, gram64, qr, dense or precise.
    tolerance
        The error that auto keeps below, as a share of the largest singular value.
    device
        Where to compute, as torch names it: cpu, cuda, cuda:1.
    layouts
        A TOML file that describes an architecture which the table does not know.
    rows
        The most rows of a table to show.
    """
    from rankwise.cli.progress import progress
    from rankwise.scans.difference import diff as compare
    from rankwise.scans.frame import write_parquet
    from rankwise.scans.settings import Settings
    from rankwise.sites.registry import register_layout

    for file in layouts:
        register_layout(file)
    settings = Settings.from_words(select=select, method=method, tolerance=tolerance, device=device)
    found = compare(base, tuned, settings=settings)
    with progress(quiet=json) as bar:
        record = found.run(progress=bar)
    if parquet is not None:
        write_parquet([record], parquet)
    if html is not None:
        print(f"wrote {found.report(html)}", file=sys.stderr)
    if json:
        print(_json.dumps(record, allow_nan=False))
        return
    from rich.console import Console

    from rankwise.scans.change_table import change_table

    Console().print(change_table(record, rows=rows))
