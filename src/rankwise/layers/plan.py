"""What factorizing a model would do to it, before anything is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rankwise.layers.base import Execution
from rankwise.layers.candidates import StaysDense
from rankwise.layers.initialization import Init
from rankwise.layers.kernel_matrix import Form
from rankwise.layers.ranks import Kind
from rankwise.layers.timing import Timing
from rankwise.text import printable

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class PlannedLayer:
    """One weight and the factors in its place.

    Arguments:
        names: the paths of the layers that compute with it; several where the weight is tied.
        kind: linear, conv or embedding.
        weight_shape: the shape of the dense weight.
        shape: the shape of the matrix that is factorized.
        rank: the inner width.
        depth: the number of inner factors.
        dense_work, work: multiplications for each position of the output, dense and through the factors, in all layers
            that compute with the weight.
        timing: how long both take here, where it was measured.
        notes: what the reader of the plan should know.
    """

    names: tuple[str, ...]
    kind: Kind
    weight_shape: tuple[int, ...]
    shape: tuple[int, int]
    rank: int
    depth: int
    dense_work: int
    work: int
    timing: Timing | None = None
    notes: tuple[str, ...] = ()

    @property
    def limit(self) -> int:
        """The largest rank of the matrix."""
        return min(self.shape)

    @property
    def dense_parameters(self) -> int:
        """The parameters of the dense weight."""
        return torch.Size(self.weight_shape).numel()

    @property
    def parameters(self) -> int:
        """The parameters of its factors."""
        return factor_parameters(self.shape, self.rank, self.depth)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which layers of a model become products, of which rank, and what stays dense and why.

    Arguments:
        layers: what is factorized.
        dense: the matrices that are not, each with its reason.
        dense_parameters: all parameters of the model, norms and biases included.
        scale: the scale that all ranks come from, where they come from one.
        depth, form, init, execution: as given to `factorize`.
    """

    layers: tuple[PlannedLayer, ...]
    dense: tuple[StaysDense, ...]
    dense_parameters: int
    scale: float | None = None
    depth: int = 0
    form: Form = "spatial"
    init: Init = field(default="spectral", repr=False)
    execution: Execution = "auto"

    @property
    def parameters(self) -> int:
        """All parameters of the factorized model."""
        return self.dense_parameters + sum(layer.parameters - layer.dense_parameters for layer in self.layers)

    @property
    def ratio(self) -> float:
        """Parameters of the factorized model over those of the dense one."""
        return self.parameters / self.dense_parameters

    @property
    def ranks(self) -> dict[str, int]:
        """The rank of every layer by its path, as `factorize(model, rank=...)` takes them."""
        return {name: layer.rank for layer in self.layers for name in layer.names}

    def apply(self, model: nn.Module) -> Any:
        """A copy of the model with these layers factorized; the model is left alone.

        Weights are read from the model that is given, which may be another one of the same shape.
        """
        from rankwise.layers.surgery import applied

        return applied(self, model)

    def table(self) -> Table:
        """Every factorized layer in a row."""
        from rich.table import Table
        from rich.text import Text

        measured = any(layer.timing is not None for layer in self.layers)
        noted = any(layer.notes for layer in self.layers)
        table = Table(title=_title(self))
        table.add_column("layer", overflow="fold")
        for column in ("weight", "rank", "parameters", "multiplications", *(["measured here"] if measured else [])):
            table.add_column(column, justify="right")
        if noted:
            table.add_column("notes", overflow="fold")
        for layer in self.layers:
            row = [
                ", ".join(map(printable, layer.names)) or "(the model)",
                "x".join(map(str, layer.weight_shape)),
                f"{layer.rank:,} of {layer.limit:,}",
                f"{layer.parameters:,} ({layer.parameters / layer.dense_parameters:.2f})",
                f"{layer.work:,}" + (f" ({layer.work / layer.dense_work:.2f})" if layer.dense_work else ""),
                *([str(layer.timing or "")] if measured else []),
                *(["; ".join(layer.notes)] if noted else []),
            ]
            table.add_row(*map(Text, row))
        table.caption = (
            "multiplications for each position of the output; in parentheses, the share of the dense layer's"
        )
        return table

    def dense_table(self) -> Table:
        """Every matrix that stays dense in a row, with the reason."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title="stays dense")
        table.add_column("parameter", overflow="fold")
        table.add_column("shape", justify="right")
        table.add_column("why", overflow="fold")
        for each in self.dense:
            table.add_row(*map(Text, (printable(each.parameter), "x".join(map(str, each.shape)), each.reason)))
        return table

    def __rich__(self) -> Group:
        from rich.console import Group

        return Group(self.table(), self.dense_table()) if self.dense else Group(self.table())

    def __str__(self) -> str:
        return (
            f"{len(self.layers)} layers factorized, {len(self.dense)} matrices stay dense: "
            f"{self.dense_parameters:,} -> {self.parameters:,} parameters ({self.ratio:.4f})"
        )


def factor_parameters(shape: tuple[int, int], rank: int, depth: int) -> int:
    """How many numbers the factors of a matrix hold.

    >>> factor_parameters((96, 48), 5, 0), factor_parameters((96, 48), 5, 1)
    (720, 745)
    """
    return rank * sum(shape) + depth * rank * rank


def _title(plan: Plan) -> str:
    scale = "" if plan.scale is None else f", scale {plan.scale:.4g}"
    return f"{plan.dense_parameters:,} -> {plan.parameters:,} parameters ({plan.ratio:.4f}){scale}"
