"""Tensors in double precision, so that what is folded into a stored factor is not rounded to its type."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rankwise.sites.source import Source, tensor_of


@dataclass(frozen=True)
class Wide:
    """A source whose tensors come in float64: a bfloat16 factor times a gain would lose all but eight bits of it."""

    source: Source

    def __getitem__(self, name: str) -> Tensor:
        return tensor_of(self.source, name)[0].double()

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> Tensor:
        """Rows of a tensor, as `Site.product` asks for them."""
        if index is None:
            return self[name]
        (rows,) = index
        tensor, cut = tensor_of(self.source, name, (rows.start, rows.stop))
        return (tensor if cut else tensor[rows]).double()
