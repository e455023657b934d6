"""`rankwise scan`: every product of a checkpoint."""

from __future__ import annotations

import json as _json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

if TYPE_CHECKING:
    from rankwise.scans.scan import Scan


def scan(
    *checkpoints: str,
    json: bool = False,
    html: Path | None = None,
    parquet: Path | None = None,
    select: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    measure: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    spectra: str | None = None,
    method: str = "auto",
    tolerance: float = 1e-6,
    weights: str = "stored",
    device: str | None = None,
    layouts: Annotated[tuple[Path, ...], Parameter(consume_multiple=False)] = (),
    rows: int = 60,
    resume: bool = False,
) -> None:
    """Read every weight product of a checkpoint: its spectrum, its balance, and what random factors would give.

    A checkpoint is a directory, a safetensors or PyTorch file, an index of shards, a PEFT adapter, a URL, or
    hf://org/name. A glob in quotes, or several checkpoints, is a series. Nothing is loaded whole: the tensors of one
    site are held at a time. Ctrl-C keeps what was found, and --resume goes on from there.

    Parameters
    ----------
    checkpoints
        What to scan.
    json
        Print the record as JSON and nothing else.
    html
        Write the scan as one self-contained page.
    parquet
        Write one row for each head, spectra included.
    select
        Which sites: kind=qk+ov,layer=0-3,stack=decoder,name=layers.*.qk
    measure
        Which measures, by name, joined by commas; all by default.
    spectra
        Kinds to compute whole spectra of, joined by commas; qk,ov,lora,linear,conv by default.
    method
        auto, gram32, gram64, qr, dense or precise.
    tolerance
        The error that auto keeps below, as a share of the largest singular value.
    weights
        stored, or effective: biases and gains folded in.
    device
        Where to compute, as torch names it: cpu, cuda, cuda:1.
    layouts
        A TOML file that describes an architecture which the table does not know.
    rows
        The most rows of a table to show.
    resume
        Go on with a scan that was interrupted.
    """
    from rankwise.errors import UserError
    from rankwise.scans.frame import write_parquet
    from rankwise.scans.scan import scan as start
    from rankwise.scans.series import series_record, steps_of
    from rankwise.scans.settings import Settings
    from rankwise.sites.registry import register_layout

    if not checkpoints:
        raise UserError("nothing to scan: give a checkpoint, as in 'rankwise scan path/to/model'")
    for file in layouts:
        register_layout(file)
    settings = Settings.from_words(
        select=select,
        measures=measure,
        spectra=spectra,
        method=method,
        tolerance=tolerance,
        weights=weights,
        device=device,
    )
    records = []
    for step, source in steps_of(checkpoints):
        opened = start(source, settings=settings)
        record = _run(opened, resume=resume, quiet=json)
        records.append(record if step is None else {**record, "step": step})
        if not json:
            _show(records[-1], rows)
    whole: Any = records[0] if len(records) == 1 and "step" not in records[0] else series_record(records)
    if parquet is not None:
        write_parquet(records, parquet)
    if html is not None:
        from rankwise.report.page import write_page

        write_page(whole if len(records) == 1 else records, html)
        print(f"wrote {html}", file=sys.stderr)
    if json:
        print(_json.dumps(whole, allow_nan=False))


def _run(opened: Scan, *, resume: bool, quiet: bool) -> dict[str, Any]:
    from rankwise.cli.progress import progress

    with progress(quiet=quiet) as bar:
        try:
            return opened.run(progress=bar, resume=resume, journal=True)
        except KeyboardInterrupt:
            done = len(opened.record["sites"])
            where = f"stopped after {done} of {len(opened.sites)} sites; what was found is kept"
            print(f"rankwise: {where}: run the same command with --resume to go on", file=sys.stderr)
            raise


def _show(record: dict[str, Any], rows: int) -> None:
    from rich.console import Console

    from rankwise.scans.table import scan_table, summary

    console = Console(soft_wrap=False)
    console.print(scan_table(record, rows=rows))
    console.print(summary(record))
