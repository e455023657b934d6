"""What factorizing a model would do to it, before anything is done."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rankwise.layers.base import Execution
from rankwise.layers.candidates import StaysDense
from rankwise.layers.dense import Form, is_tensor_form
from rankwise.layers.initialization import Init
from rankwise.layers.ranks import Kind, Rank
from rankwise.layers.timing import Timing
from rankwise.text import printable

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_NUMBER = re.compile(r"\.\d+(?=\.)\.")


@dataclass(frozen=True, kw_only=True)
class PlannedLayer:
    """One weight, and the factors or cores in its place.

    Arguments:
        names: the paths of the layers that compute with it; several where the weight is tied.
        kind: linear, conv or embedding.
        weight_shape: the shape of the dense weight.
        shape: of the matrix that is factorized, or the modes of the tensor.
        rank: the inner width, or the ranks of the tensor form.
        depth: the number of inner factors.
        parameters: what the factors or cores hold.
        dense_work, work: multiplications for each position of the output, dense and through the factors, in all layers
            that compute with the weight.
        timing: how long both take here, where it was measured.
        notes: what the reader of the plan should know.
    """

    names: tuple[str, ...]
    kind: Kind
    weight_shape: tuple[int, ...]
    shape: tuple[int, ...]
    rank: Rank
    depth: int
    parameters: int
    dense_work: int
    work: int
    timing: Timing | None = None
    notes: tuple[str, ...] = ()

    @property
    def limit(self) -> int | None:
        """The largest rank of the matrix; None for a tensor form, whose ranks limit each other."""
        return min(self.shape) if isinstance(self.rank, int) else None

    @property
    def dense_parameters(self) -> int:
        """The parameters of the dense weight."""
        return torch.Size(self.weight_shape).numel()


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan:
    """Which layers of a model become products or tensor forms, of which rank, and what stays dense and why.

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
    def ranks(self) -> dict[str, Rank]:
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
        from rich.text import Text

        measured = any(layer.timing is not None for layer in self.layers)
        table = _table(_title(self), caption=_caption(measured))
        table.add_column("layer", overflow="fold")
        for column in ("weight", "rank", "parameters", "FLOPs", *(["time here"] if measured else [])):
            table.add_column(column, justify="right", no_wrap=True)
        for layer in self.layers:
            row = [
                _name(layer),
                "x".join(map(str, layer.weight_shape)),
                _rank(layer),
                f"{layer.parameters:,} {layer.parameters / layer.dense_parameters:.2f}",
                f"{2 * layer.work:,}" + (f" {layer.work / layer.dense_work:.2f}" if layer.dense_work else ""),
                *([_time(layer.timing)] if measured else []),
            ]
            table.add_row(*map(Text, row))
        return table

    def notes_table(self) -> Table:
        """What there is to know about factorized layers; those whose numbers alone differ share a row."""
        noted = [(_name(layer), layer.weight_shape, "; ".join(layer.notes)) for layer in self.layers if layer.notes]
        return _remarks("notes", ("layer", "weight", "note"), noted)

    def dense_table(self) -> Table:
        """Every matrix that stays dense with the reason; those whose numbers alone differ share a row."""
        left = [(printable(each.parameter), each.shape, each.reason) for each in self.dense]
        return _remarks("stays dense", ("parameter", "shape", "why"), left)

    def __rich__(self) -> Group:
        from rich.console import Group

        tables = [self.table()]
        if any(layer.notes for layer in self.layers):
            tables.append(self.notes_table())
        if self.dense:
            tables.append(self.dense_table())
        return Group(*tables)

    def __repr__(self) -> str:
        return (
            f"Plan({len(self.layers)} layers factorized, {len(self.dense)} matrices stay dense: "
            f"{self.dense_parameters:,} -> {self.parameters:,} parameters)"
        )

    def __str__(self) -> str:
        """The tables as text, as wide as the terminal."""
        from rich.console import Console

        console = Console()
        with console.capture() as printed:
            console.print(self)
        return printed.get().rstrip()


def _title(plan: Plan) -> str:
    scale = "" if plan.scale is None else f", scale {plan.scale:.4g}"
    form = f", {plan.form}" if is_tensor_form(plan.form) else ""
    return f"{plan.dense_parameters:,} -> {plan.parameters:,} parameters ({plan.ratio:.4f}){scale}{form}"


def _name(layer: PlannedLayer) -> str:
    return ", ".join(map(printable, layer.names)) or "(the model)"


def _rank(layer: PlannedLayer) -> str:
    return f"{layer.rank:,}/{layer.limit:,}" if isinstance(layer.rank, int) else "x".join(map(str, layer.rank))


def _table(title: str, caption: str | None = None) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(
        title=title, caption=caption, box=SIMPLE_HEAD, pad_edge=False, title_justify="left", caption_justify="left"
    )


def _remarks(title: str, columns: tuple[str, str, str], remarks: Iterable[tuple[str, tuple[int, ...], str]]) -> Table:
    """Names, shapes and what is said of them, one row for all that are alike but for the numbers in their names."""
    from rich.text import Text

    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, shape, remark in remarks:
        alike[_NUMBER.sub(".*.", f".{name}")[1:], "x".join(map(str, shape)), remark].append(name)
    table = _table(title)
    first, second, last = columns
    table.add_column(first, overflow="fold")
    table.add_column(second, justify="right", no_wrap=True)
    table.add_column(last, overflow="fold")
    for (pattern, shape, remark), names in alike.items():
        name, count = (names[0], "") if len(names) == 1 else (pattern, f"{len(names)} of ")
        table.add_row(*map(Text, (name, f"{count}{shape}", remark)))
    return table


def _caption(measured: bool) -> str:
    time = "; time: forward and backward in the faster way" if measured else ""
    return (
        f"FLOPs: of a forward pass, for each position of the output{time}. A second number is the share of the dense "
        "layer's: below 1 is less."
    )


def _time(timing: Timing | None) -> str:
    return "" if timing is None else f"{timing.share:.2f} {timing.faster}"
