"""`rankwise diff`: the change of every product between two checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number


def diff(
    base: str,
    tuned: str,
    /,
    *,
    json: bool = False,
    html: Path | None = None,
    parquet: Path | None = None,
    select: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    measure: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    method: str = "auto",
    tolerance: float = 1e-6,
    device: str | None = None,
    layouts: Annotated[tuple[Path, ...], Parameter(consume_multiple=False)] = (),
    rows: Annotated[int, Parameter(validator=Number(gte=0))] = 60,
    resume: bool = False,
) -> int:
    """Compare two checkpoints, product by product.

    Of every product: the spectrum of its change, in a form that keeps the small singular values, and how far the
    leading directions of the change lie in those of the base. Of every single matrix: the rank that a LoRA needs for
    90, 95 and 99 % of the energy of its change.

    Either may be what 'rankwise scan' takes. Their names may differ by a prefix. Ctrl-C keeps what was found, and
    --resume goes on from there.

    ```
    rankwise diff path/to/base path/to/tuned --html change.html
    ```

    Parameters
    ----------
    base
        The checkpoint before.
    tuned
        The checkpoint after.
    json
        Print the record as JSON on stdout and nothing else there; docs/scan-format.md describes it.
    html
        Write the comparison as one self-contained page.
    parquet
        Write one row for each head, spectra included, for data frames.
    select
        Which sites: kind=qk+ov, layer=0-3, stack=decoder, name=layers.*.qk, joined by commas; the matrices are those
        that they are read from.
    measure
        Which measures, by name, joined by commas; all by default.
    method
        How spectra are computed: auto, gram32, gram64, qr, dense or precise.
    tolerance
        The error that auto keeps below, as a share of the largest singular value.
    device
        Where to compute, as torch names it: cpu, cuda, cuda:1.
    layouts
        A TOML file that describes an architecture which the table does not know.
    rows
        The most rows of a table to show; 0 shows none, only what stands out.
    resume
        Go on with a comparison that was interrupted, with the same options.
    """
    from rankwise.cli.outputs import Outputs
    from rankwise.cli.running import STOPPED, announce, run
    from rankwise.scans.difference import diff as compare
    from rankwise.scans.settings import Settings
    from rankwise.sites.registry import register_layout

    outputs = Outputs(json=json, html=html, parquet=parquet)
    outputs.check()
    for file in layouts:
        register_layout(file)
    settings = Settings.from_words(select=select, measures=measure, method=method, tolerance=tolerance, device=device)
    found = compare(base, tuned, settings=settings)
    with found.journal(resume=resume) as journal:
        announce(journal, resume=resume)
        record = run(found, journal, quiet=json)
        outputs.write([record], record)
        if not json:
            from rich.console import Console

            from rankwise.scans.change_table import change_table

            Console().print(change_table(record, rows=rows))
        if not record["complete"]:
            return STOPPED
        journal.discard()
    return 0
