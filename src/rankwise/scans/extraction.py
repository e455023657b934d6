"""What an extracted adapter keeps of a fine-tune, and what it cannot carry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rankwise.numbers import bound, number
from rankwise.scans.table import Columns, cells, count
from rankwise.text import printable


@dataclass(frozen=True)
class Extracted:
    """One matrix of an adapter.

    Arguments:
        module: the linear layer it adapts, as the base names it.
        rank: how many triplets it keeps; 0 where the adapter leaves the layer alone.
        error: the Frobenius norm of what the adapter misses of the change, measured on its weights as they are stored.
        norm: the Frobenius norm of the change.
    """

    module: str
    rank: int = field(kw_only=True)
    error: float = field(kw_only=True)
    norm: float = field(kw_only=True)

    def record(self) -> dict[str, Any]:
        return {"module": self.module, "rank": self.rank, "error": number(self.error), "norm": number(self.norm)}


@dataclass(frozen=True)
class Extraction:
    """An adapter on disk.

    Arguments:
        folder: where it was written.
        matrices: one entry for each linear layer that changed, those of rank 0 included.
        unchanged: the linear layers that did not change, or by less than rounding.
        left_out: tensors that changed and that no LoRA of linear layers carries (biases, norms, embeddings, new heads),
            with the norm of their change.
        bytes: the size of the file of its weights.
        shortfall: with a budget, the share of the energy that other ranks within it could keep at most; 0 where these
            are the best.
    """

    folder: Path
    matrices: tuple[Extracted, ...] = field(kw_only=True)
    unchanged: tuple[str, ...] = field(kw_only=True)
    left_out: Mapping[str, float] = field(kw_only=True)
    bytes: int = field(kw_only=True)
    shortfall: float = field(kw_only=True)

    @property
    def relative_error(self) -> float:
        """The error over the norm of the change, all matrices together."""
        missed = sum(each.error**2 for each in self.matrices)
        total = sum(each.norm**2 for each in self.matrices)
        return (missed / total) ** 0.5 if total else 0.0

    def record(self) -> dict[str, Any]:
        """The extraction as JSON."""
        return {
            "folder": str(self.folder),
            "bytes": self.bytes,
            "relative_error": number(self.relative_error),
            "shortfall": bound(self.shortfall),
            "matrices": [each.record() for each in self.matrices],
            "unchanged": list(self.unchanged),
            "left_out": {name: number(norm) for name, norm in self.left_out.items()},
        }

    def table(self, *, rows: int) -> RenderableType:
        """A row for each matrix, and what the adapter cannot carry."""
        title = f"{count(len(self.matrices), 'matrix', 'matrices')} that changed"
        tables = [cells(title, self.matrices, COLUMNS, rows)] if rows else []
        return Group(*tables, *self._gist())

    def __rich__(self) -> RenderableType:
        return self.table(rows=len(self.matrices))

    def _gist(self) -> Iterator[Text]:
        if self.unchanged:
            yield Text(f"Unchanged: {count(len(self.unchanged), 'matrix', 'matrices')}.", style="dim")
        if self.left_out:
            largest = max(self.left_out, key=lambda name: number(self.left_out[name]) or 0.0)
            yield Text(
                f"Left out: {count(len(self.left_out), 'tensor')} changed that a LoRA of linear layers cannot carry "
                f"(biases, norms, embeddings, new heads), most of all {printable(largest)}, by "
                f"{self.left_out[largest]:.3g}."
            )
        if self.shortfall:
            yield Text(f"Other ranks within the budget may keep up to {self.shortfall:.1e} more of the energy.")
        energy = 1 - self.relative_error**2
        yield Text(
            f"The adapter takes {self.bytes:,} bytes and holds {energy:.1%} of the energy of the change of these "
            f"matrices; it misses {self.relative_error:.1%} of its norm.",
            style="bold",
        )


COLUMNS: Columns = (
    ("matrix", lambda each: printable(each.module)),
    ("rank", lambda each: str(each.rank)),
    ("norm of the change", lambda each: f"{each.norm:.4g}"),
    ("error", lambda each: f"{each.error:.3g}"),
    ("share missed", lambda each: f"{each.error / each.norm:.1%}"),
)
