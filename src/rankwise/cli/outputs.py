"""Where the results of a command go: checked before the work begins, written when it is done."""

from __future__ import annotations

import json as _json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What a command writes beside its table.

    Arguments:
        json: print the record on stdout, and nothing else there.
        html, parquet: files to write.
    """

    json: bool
    html: Path | None
    parquet: Path | None

    def check(self) -> None:
        """Say now what would go wrong after hours of work: a path that cannot be written, a library that is missing."""
        from rankwise.errors import require
        from rankwise.files import check_writable

        for path in (self.html, self.parquet):
            if path is not None:
                check_writable(path)
        if self.html is not None:
            require("jinja2", extra="report")
            require("plotly", extra="report")
        if self.parquet is not None:
            require("pyarrow", extra="report")

    def write(self, records: Sequence[Mapping[str, Any]], whole: Mapping[str, Any]) -> None:
        """Write everything that was asked for.

        Arguments:
            records: one for each checkpoint.
            whole: them all as one JSON object.
        """
        if self.parquet is not None:
            from rankwise.scans.frame import write_parquet

            write_parquet(records, self.parquet)
            print(f"wrote {self.parquet}", file=sys.stderr)
        if self.html is not None:
            from rankwise.report.page import write_page

            write_page(whole, self.html)
            print(f"wrote {self.html}", file=sys.stderr)
        if self.json:
            print(_json.dumps(whole, allow_nan=False), flush=True)
