"""Any torch module whose attention weights are diagonal, as a problem of the products of those weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rankwise.errors import UserError
from rankwise.theory.coordinates import Coordinate, Pairing
from rankwise.theory.problem import Problem

if TYPE_CHECKING:
    from jaxtyping import Float

# How much the output may change when one factor of each pair is doubled and the other halved: rounding.
GAUGE = 1e-9


@dataclass(frozen=True)
class Diagonal:
    """Where a diagonal stands in the parameters of a module.

    Arguments:
        parameter: the name of a vector, or of a matrix that holds the diagonal from its place on, and zeros beside it.
        row: the row of the first entry (for a vector, its first entry): heads are often stacked.
        column: the column of the first entry.
    """

    parameter: str
    row: int = field(kw_only=True, default=0)
    column: int = field(kw_only=True, default=0)

    def entries(self, tensor: Tensor, width: int) -> tuple[Tensor, ...]:
        """Where the entries are, as an index of the parameter."""
        steps = torch.arange(width)
        return (self.row + steps,) if tensor.ndim == 1 else (self.row + steps, self.column + steps)


@dataclass(frozen=True, kw_only=True)
class DiagonalPair:
    """Two diagonal weights that a head multiplies.

    Arguments:
        left: the keys' or the values' weight.
        right: the queries' or the output's weight.
        width: the number of entries.
        layer: of the head.
        head: its number.
        pairing: QK or VO.
    """

    left: Diagonal
    right: Diagonal
    width: int
    layer: int
    head: int
    pairing: Pairing


def from_module(
    module: nn.Module,
    *,
    pairs: Sequence[DiagonalPair],
    inputs: Tensor,
    loss: Callable[[Tensor], Tensor],
) -> Problem:
    """The loss of a module as a function of the products of its diagonal attention weights; all else stays as it is.

    The module is run with the products in the place of the left weights and ones in the place of the right ones, which
    says the same as long as it depends on the products alone; that is checked, on its present weights.

    Arguments:
        module: in float64, with smooth nonlinearities (GELU, softplus; ReLU is refused), without dropout.
        pairs: its diagonal weights, in the order that the products are to have.
        inputs: what it is given.
        loss: from its output to a scalar.

    >>> class Scale(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.key, self.query = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    ...
    ...     def forward(self, x):
    ...         return x * self.key * self.query
    >>> left, right = Diagonal("key"), Diagonal("query")
    >>> pair = DiagonalPair(left=left, right=right, width=2, layer=0, head=0, pairing=Pairing.QK)
    >>> data = torch.ones(3, 2).double()
    >>> problem = from_module(Scale().double(), pairs=[pair], inputs=data, loss=lambda y: (y - 1).square().sum())
    >>> problem.value(torch.tensor([1.0, 2.0]).double())
    3.0
    """
    if module.training and any(isinstance(one, nn.Dropout) and one.p > 0 for one in module.modules()):
        raise UserError("the module draws dropout: call module.eval() first, the loss must be the same every time")
    fixed: dict[str, Tensor] = {name: one.detach() for name, one in module.named_parameters()}
    for name, tensor in fixed.items():
        if tensor.dtype != torch.float64:
            raise UserError(f"{name} is {tensor.dtype}: convert the module first, module.double()")
    for pair in pairs:
        _check_diagonal(fixed, pair, pairs)

    def run(tensors: Mapping[str, Tensor]) -> Tensor:
        return loss(functional_call(module, dict(tensors), (inputs,)))

    def value(products: Tensor) -> Tensor:
        return run(_substituted(fixed, pairs, products))

    _check_products(fixed, pairs, run)
    coordinates = [
        Coordinate(layer=pair.layer, head=pair.head, pairing=pair.pairing, channel=channel)
        for pair in pairs
        for channel in range(pair.width)
    ]
    return Problem.from_loss(value, size=len(coordinates), coordinates=coordinates)


def products_of(module: nn.Module, pairs: Sequence[DiagonalPair]) -> Float[Tensor, " p"]:
    """The products that a module has at present, in the order of the pairs."""
    tensors = {name: one.detach() for name, one in module.named_parameters()}
    return torch.cat([_entries(tensors, pair.left, pair) * _entries(tensors, pair.right, pair) for pair in pairs])


def _entries(tensors: Mapping[str, Tensor], place: Diagonal, pair: DiagonalPair) -> Tensor:
    tensor = tensors[place.parameter]
    return tensor[place.entries(tensor, pair.width)]


def _substituted(fixed: Mapping[str, Tensor], pairs: Sequence[DiagonalPair], products: Tensor) -> dict[str, Tensor]:
    tensors = dict(fixed)
    for pair, own in zip(pairs, products.split([pair.width for pair in pairs]), strict=True):
        for place, entries in ((pair.left, own), (pair.right, torch.ones_like(own))):
            tensor = tensors[place.parameter]
            tensors[place.parameter] = tensor.index_put(place.entries(tensor, pair.width), entries)
    return tensors


def _check_diagonal(fixed: Mapping[str, Tensor], pair: DiagonalPair, pairs: Sequence[DiagonalPair]) -> None:
    """That both parameters are there, large enough, and zero beside their diagonals."""
    for place in (pair.left, pair.right):
        if place.parameter not in fixed:
            raise UserError(f"the module has no parameter {place.parameter!r}: choose from {', '.join(fixed)}")
        tensor = fixed[place.parameter]
        ends = [place.row + pair.width, place.column + pair.width][: tensor.ndim]
        if tensor.ndim > 2 or any(end > size for end, size in zip(ends, tensor.shape, strict=True)):
            raise UserError(
                f"{place.parameter} has shape {tuple(tensor.shape)}: {pair.width} entries from row {place.row}, column "
                f"{place.column} do not fit"
            )
        if tensor.ndim == 2:
            beside = tensor.clone()
            for other in pairs:
                for known in (other.left, other.right):
                    if known.parameter == place.parameter:
                        beside[known.entries(tensor, other.width)] = 0
            block = beside[place.row : place.row + pair.width, place.column : place.column + pair.width]
            if bool((block != 0).any()):
                raise UserError(
                    f"{place.parameter} is not diagonal: its largest entry beside the diagonal is "
                    f"{block.abs().max().item():.3g}; the theory needs diagonal attention weights"
                )


def _check_products(
    fixed: Mapping[str, Tensor], pairs: Sequence[DiagonalPair], run: Callable[[Mapping[str, Tensor]], Tensor]
) -> None:
    """That the output depends on the products alone: with one factor doubled and the other halved it is the same."""
    turned = dict(fixed)
    for pair in pairs:
        for place, factor in ((pair.left, 2.0), (pair.right, 0.5)):
            tensor = turned[place.parameter]
            entries = place.entries(tensor, pair.width)
            turned[place.parameter] = tensor.index_put(entries, factor * tensor[entries])
    with torch.no_grad():
        one, two = run(fixed), run(turned)
    if not torch.allclose(one, two, rtol=GAUGE, atol=GAUGE):
        raise UserError(
            f"the loss is {one.item():.6g}, and {two.item():.6g} with one factor of each pair doubled and the other "
            "halved: it does not depend on the products alone (biases, normalized queries, wrong pairs?)"
        )
