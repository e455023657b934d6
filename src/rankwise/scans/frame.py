"""A scan as rows: one for each head, for data frames and Parquet files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise.errors import require
from rankwise.files import write_whole

if TYPE_CHECKING:
    import pandas


def rows(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One flat row for each head: the site's facts, every measure with its error, the balance, and the spectrum."""
    for site in record["sites"]:
        facts = {key: site[key] for key in ("name", "kind", "layer", "stack", "layout", "certified")}
        facts = {"source": record["source"], "step": record.get("step"), "site": facts.pop("name"), **facts}
        for head in site["heads"]:
            row = {**facts, "head": head["head"], "method": head["method"], "failure": head["failure"]}
            for name in record["measures"]:
                value, error = head["measures"].get(name, (None, None))
                row[name], row[f"{name}_error"] = value, error
            row |= {key: (head.get("verdicts") or {}).get(key) for key in ("spikes", "rank_share", "random_distance")}
            for law in ("balance", "pairs"):
                row |= {f"{law}_{key}": (head.get(law) or {}).get(key) for key in ("half_sum", "gap", "relative")}
            row["values"], row["errors"] = head.get("values"), head.get("errors")
            yield row


def to_frame(record: Mapping[str, Any]) -> pandas.DataFrame:
    """The rows as a pandas data frame; `values` and `errors` hold lists."""
    return require("pandas", extra="report").DataFrame(list(rows(record)))


def write_parquet(records: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """The rows of one or several records as a Parquet file, the spectra as list columns."""
    arrow = require("pyarrow", extra="report")
    parquet = require("pyarrow.parquet", extra="report")
    table = arrow.Table.from_pylist([row for record in records for row in rows(record)])
    content = io.BytesIO()
    parquet.write_table(table, content)
    write_whole(path, content.getvalue())
