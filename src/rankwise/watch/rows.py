"""The rows of a run: one for each product at each snapshot, in the columns that docs/run-format.md describes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from rankwise.numbers import bound, number

Row = dict[str, Any]

# What every row says of itself.
FACTS = ("step", "of", "site", "kind", "layer", "head", "method", "failure")
# The balance of its two factors, of a group of heads, or of rotary pairs.
BALANCE = ("half_sum", "gap", "gap_error", "imbalance", "imbalance_norm", "pair_sum")
# What the optimizer implies for it.
OPTIMIZER = ("decay", "imbalance_predicted", "nuclear_coefficient")

WHOLE = {"step", "layer", "head"}
TEXT = {"of", "site", "kind", "method", "failure"}


def columns(measures: Sequence[str], *, optimizer: bool) -> tuple[str, ...]:
    """The columns of a run with these measures, each beside its error.

    >>> columns(["stable_rank"], optimizer=False)[8:10]
    ('stable_rank', 'stable_rank_error')
    """
    measured = tuple(name for measure in measures for name in (measure, f"{measure}_error"))
    return (*FACTS, *measured, *BALANCE, *(OPTIMIZER if optimizer else ()))


def header(names: Sequence[str]) -> bytes:
    """The first line of a run's rows."""
    return (",".join(names) + "\n").encode()


def written(rows: Iterable[Row], names: Sequence[str]) -> bytes:
    """Rows as lines of CSV: nine digits, errors rounded up to three, nothing where a number is not finite.

    >>> written([{"step": 1, "of": "product", "gap": 1 / 3, "gap_error": float("inf")}], ["step", "gap", "gap_error"])
    b'1,0.333333333,\\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    forms = [(name, bound if name.endswith("_error") else number) for name in names]
    for row in rows:
        writer.writerow([_cell(row.get(name), form) for name, form in forms])
    return text.getvalue().encode("utf-8", errors="replace")


def read_rows(content: bytes, names: Sequence[str]) -> Iterator[Row]:
    """The rows of some lines of CSV; None where a cell is empty.

    >>> list(read_rows(b"1,,\\n", ["step", "failure", "gap"]))
    [{'step': 1, 'failure': None, 'gap': None}]
    """
    for cells in csv.reader(io.StringIO(content.decode("utf-8"), newline="")):
        yield {name: _value(name, cell) for name, cell in zip(names, cells, strict=True)}


def rows_at(file: BinaryIO, start: int, end: int, names: Sequence[str]) -> list[Row]:
    """The rows between two bytes of a run's rows."""
    file.seek(start)
    return list(read_rows(file.read(end - start), names))


def _cell(value: Any, form: Any) -> Any:
    return form(value) if isinstance(value, float) else value


def _value(name: str, cell: str) -> Any:
    if cell == "":
        return None
    return cell if name in TEXT else int(cell) if name in WHOLE else float(cell)


def types(names: Sequence[str]) -> Mapping[str, type]:
    """What each column holds: whole numbers, texts or numbers."""
    return {name: str if name in TEXT else int if name in WHOLE else float for name in names}
