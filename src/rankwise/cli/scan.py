"""`rankwise scan`: every product of a checkpoint."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

if TYPE_CHECKING:
    from rankwise.scans.journal import Journal


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
    rows: Annotated[int, Parameter(validator=Number(gte=0))] = 60,
    resume: bool = False,
) -> int:
    """Read every weight product of a checkpoint.

    Of every attention head, adapter and factorized layer: the spectrum of its product, how far its factors are from
    balance, and what random factors of the same shape would give. Of every other matrix: its norms. What was not read
    is listed with the reason.

    CHECKPOINTS is a directory, a .safetensors or PyTorch file, an index of shards, a PEFT adapter, a URL, or
    hf://org/name. A glob in quotes, or several checkpoints, is a series of training steps. Nothing is loaded whole:
    the tensors of one site are held at a time. Ctrl-C keeps what was found, and --resume goes on from there.

    ```
    rankwise scan path/to/model --html page.html
    rankwise scan 'run/step*' --select kind=qk,layer=0-3
    ```

    Parameters
    ----------
    checkpoints
        What to scan.
    json
        Print the record as JSON on stdout and nothing else there; docs/scan-format.md describes it.
    html
        Write the scan as one self-contained page, with the spectrum of every head.
    parquet
        Write one row for each head, spectra included, for data frames.
    select
        Which sites: kind=qk+ov, layer=0-3, stack=decoder, name=layers.*.qk, joined by commas. Kinds are qk, ov, lora,
        linear, conv, mlp, embed and matrix.
    measure
        Which measures, by name, joined by commas; all by default.
    spectra
        Kinds to compute whole spectra of, joined by commas, or none; the others get norms. By default
        qk,ov,lora,linear,conv.
    method
        How spectra are computed: auto goes up the ladder gram32, gram64, qr, dense until the error is within the
        tolerance; or name one of them, or precise for the relative accuracy of tiny values.
    tolerance
        The error that auto keeps below, as a share of the largest singular value.
    weights
        stored, or effective: biases and gains folded in, as the network multiplies.
    device
        Where to compute, as torch names it: cpu, cuda, cuda:1.
    layouts
        A TOML file that describes an architecture which the table does not know.
    rows
        The most rows of a table to show; 0 shows none, only what stands out.
    resume
        Go on with a scan that was interrupted, with the same options.
    """
    from rankwise.cli.outputs import Outputs
    from rankwise.cli.running import STOPPED, announce, run
    from rankwise.errors import UserError
    from rankwise.scans.scan import scan as start
    from rankwise.scans.series import series_record, steps_of
    from rankwise.scans.settings import Settings
    from rankwise.sites.checkpoints import open_checkpoint
    from rankwise.sites.registry import register_layout

    if not checkpoints:
        raise UserError("nothing to scan: give a checkpoint, as in 'rankwise scan path/to/model'")
    outputs = Outputs(json=json, html=html, parquet=parquet)
    outputs.check()
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
    steps = steps_of(checkpoints)
    if len(steps) > 1:
        # The last checkpoint of a series may be broken: better to say so before the first one is computed.
        for _, source in steps:
            open_checkpoint(source).close()
    records: list[dict[str, Any]] = []
    journals: list[Journal] = []
    with ExitStack() as stack:
        for step, source in steps:
            opened = start(source, settings=settings)
            journals.append(stack.enter_context(opened.journal(resume=resume)))
            announce(journals[-1], resume=resume)
            records.append({**run(opened, journals[-1], quiet=json), "step": step})
            if not records[-1]["complete"]:
                break
        whole = records[0] if steps[0][0] is None else series_record(records)
        outputs.write(records, whole)
        if not json:
            _show(records, rows)
        if not records[-1]["complete"]:
            return STOPPED
        for journal in journals:
            journal.discard()
    return _verdict(records)


def _show(records: list[dict[str, Any]], rows: int) -> None:
    from rich.console import Console

    from rankwise.scans.table import scan_table, summary

    console = Console()
    if len(records) > 1:
        from rankwise.scans.series_table import series_table

        console.print(series_table(records, rows=rows))
    else:
        console.print(scan_table(records[0], rows=rows))
    console.print(summary(records[-1]))


def _verdict(records: list[dict[str, Any]]) -> int:
    """Where nothing at all could be read, the exit code says so and not the output alone."""
    from rankwise.errors import UserError
    from rankwise.text import printable

    for record in records:
        if not record["sites"] and record["unread"]:
            first, count = record["unread"][0], len(record["unread"])
            raise UserError(
                f"nothing of {printable(record['source'])} can be read: {printable(first['parameter'])}"
                f"{f' and {count - 1} more' if count > 1 else ''}: {first['reason']}"
            )
    return 0
