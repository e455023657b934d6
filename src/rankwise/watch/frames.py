"""The rows of a run in the tables that people work with."""

from __future__ import annotations

import io
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rankwise.errors import UserError, require
from rankwise.watch.rows import types
from rankwise.watch.survey import ROWS

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from rankwise.watch.run import Run


def to_arrow(run: Run) -> pyarrow.Table:
    """All rows as an Arrow table: whole numbers, texts and numbers, null where a cell is empty."""
    arrow: Any = require("pyarrow", extra="report")
    reader: Any = require("pyarrow.csv", extra="report")
    kinds = {int: arrow.int64(), str: arrow.string(), float: arrow.float64()}
    schema = {name: kinds[kind] for name, kind in types(run.columns).items()}
    if not run.snapshots:
        return arrow.table({name: arrow.array([], kind) for name, kind in schema.items()})
    return reader.read_csv(
        arrow.py_buffer(_content(run)),
        read_options=reader.ReadOptions(column_names=list(run.columns)),
        convert_options=reader.ConvertOptions(
            column_types=schema, strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )


def to_pandas(run: Run) -> pandas.DataFrame:
    """All rows as a pandas data frame; `layer` is a whole number that may be missing."""
    frames: Any = require("pandas", extra="report")
    kinds = {int: "Int64", str: "str", float: "float64"}
    return frames.read_csv(
        io.BytesIO(_content(run)),
        names=list(run.columns),
        dtype={name: kinds[kind] for name, kind in types(run.columns).items()},
        keep_default_na=False,
        na_values=[""],
    ).astype({"step": "int64", "head": "int64"})


def to_polars(run: Run) -> Any:
    """All rows as a polars data frame."""
    try:
        frames: Any = import_module("polars")
    except ImportError:  # No extra brings it: whoever works with polars has it.
        raise UserError("polars is not installed: pip install polars, or take run.to_pandas()") from None
    kinds = {int: frames.Int64, str: frames.String, float: frames.Float64}
    schema = {name: kinds[kind] for name, kind in types(run.columns).items()}
    if not run.snapshots:
        return frames.DataFrame(schema=schema)
    return frames.read_csv(_content(run), has_header=False, new_columns=list(run.columns), schema=schema)


def _content(run: Run) -> bytes:
    """The bytes of all rows that the log speaks of: mostly one piece of the file."""
    pieces: list[tuple[int, int]] = []
    for entry in run.snapshots:
        if pieces and pieces[-1][1] == entry.rows[0]:
            pieces[-1] = (pieces[-1][0], entry.rows[1])
        else:
            pieces.append(entry.rows)
    assert all(one[1] <= two[0] for one, two in pairwise(pieces))
    with (run.folder / ROWS).open("rb") as file:
        return b"".join(_piece(file, *edges) for edges in pieces)


def _piece(file: Any, start: int, end: int) -> bytes:
    file.seek(start)
    return file.read(end - start)
