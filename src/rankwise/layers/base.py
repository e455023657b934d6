"""What all factorized layers share: a weight that is a product, never formed unless that is cheaper."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from rankwise.errors import UserError
from rankwise.layers.cost import Step, Work, forming_cost, one_step_is_cheaper
from rankwise.layers.initialization import (
    Draw,
    Init,
    Spectral,
    check_rank,
    checked_init,
    factor_shapes,
    initial_factors,
)
from rankwise.product.product import Product

if TYPE_CHECKING:
    from jaxtyping import Float

Execution = Literal["auto", "two-step", "one-step"]


def check_depth(depth: int) -> None:
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
        raise UserError(f"depth, the number of inner factors, must be 0 or more, got {depth!r}")


def check_execution(execution: str) -> None:
    if execution not in get_args(Execution):
        raise UserError(f"execution must be one of {', '.join(get_args(Execution))}, got {execution!r}")


def check_dense(dense: object, kind: type[nn.Module]) -> None:
    """Refuse to take the place of a layer of another kind."""
    if not isinstance(dense, kind):
        raise UserError(f"from_dense takes the place of a torch.nn.{kind.__name__}, got a {type(dense).__name__}")


class FactorizedLayer(nn.Module):
    """A layer whose weight, read as a matrix, is `W = factors[0] @ ... @ factors[-1]`.

    The factors are `[m, r]`, inner ones `[r, r]`, and `[r, n]`, in the orientation of the dense layer's weight. They
    are ordinary parameters, and nothing stands between them: what a penalty of the product needs.

    Arguments:
        rows, columns: `m` and `n`.
        rank: the inner width `r`.
        depth: how many inner factors there are.
        overcomplete: allow a rank above `min(m, n)`.
        init: how the factors start; see `rankwise.Spectral`.
        execution: multiply the input by one factor after the other ("two-step"), form the weight first ("one-step"), or
            whatever costs less at the shape of the input ("auto").
    """

    factors: nn.ParameterList
    bias: nn.Parameter | None
    init: Spectral | Draw
    _list_name = "factors"

    def __init__(
        self,
        rows: int,
        columns: int,
        *,
        rank: int,
        depth: int,
        overcomplete: bool,
        init: Init,
        execution: Execution,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        check_rank(rank, (rows, columns), overcomplete=overcomplete)
        check_depth(depth)
        self.rank = rank
        self.depth = depth
        self.init = checked_init(init)
        self.execution = execution
        shapes = factor_shapes(rows, columns, rank, depth)
        parameters = [nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) for shape in shapes]
        setattr(self, self._list_name, nn.ParameterList(parameters))

    @property
    def execution(self) -> Execution:
        return self._execution

    @execution.setter
    def execution(self, execution: Execution) -> None:
        check_execution(execution)
        self._execution: Execution = execution

    @property
    def product(self) -> Product:
        """The weight as a product of the live parameters."""
        return Product(*self.factors)

    @property
    def weight(self) -> Tensor:
        """The dense weight in the dense layer's own shape, computed anew and differentiable."""
        return self._as_weight(self.product.dense())

    def __repr__(self) -> str:
        # On one line: the factors' shapes follow from it, and a module's own way would list them.
        return f"{type(self).__name__}({self.extra_repr()})"

    def forward(self, input: Tensor) -> Tensor:
        step = self.execution_at(input) if self.execution == "auto" else self.execution
        return self._at_once(input) if step == "one-step" else self._step_by_step(input)

    def execution_at(self, input: Tensor) -> Step:
        """What costs less for an input of this shape, forward and backward together."""
        rows, columns = self.factors[0].shape[0], self.factors[-1].shape[1]
        one_step = one_step_is_cheaper(
            step_by_step=self.work("two-step"),
            at_once=self.work("one-step"),
            forming=forming_cost(rows, columns, self.rank, self.depth),
            positions=self._positions(input),
        )
        return "one-step" if one_step else "two-step"

    @abstractmethod
    def work(self, step: Step) -> Work:
        """What each position of the output takes in a forward pass, forming the weight left aside."""

    @torch.no_grad()
    def fold(self) -> nn.Module:
        """The ordinary dense layer with the same function: the product is computed in float64, and cast back."""
        dense = self._dense_layer(device="meta")
        chain = self.product
        weight = self._as_weight(chain.to(torch.float64).dense()).to(chain.dtype)
        dense.weight = nn.Parameter(weight.contiguous(), requires_grad=any(f.requires_grad for f in self.factors))
        if self.bias is not None:
            dense.bias = nn.Parameter(self.bias.detach().clone(), requires_grad=self.bias.requires_grad)
        return dense.train(self.training)

    def reset_parameters(self) -> None:
        """Draw a dense layer in its own scheme and start from it, as a new layer does."""
        if self.factors[0].device.type != "meta":
            self._start_from(self._dense_layer(device=self.factors[0].device))

    @torch.no_grad()
    def _start_from(self, dense: Any) -> None:
        """Take the weight and the bias of a dense layer of the same configuration."""
        weight = dense.weight.detach()
        if isinstance(self.init, Spectral) and self.init.draw is not None:
            weight = torch.empty_like(weight)
            self.init.draw(weight)
        started = initial_factors(self._as_matrix(weight), self.rank, inner=self.depth, init=self.init)
        for factor, value in zip(self.factors, started, strict=True):
            factor.copy_(value)
            factor.requires_grad_(dense.weight.requires_grad)
        if self.bias is not None:
            self.bias.copy_(dense.bias)
            self.bias.requires_grad_(dense.bias.requires_grad)

    def settle(self, dense: Any) -> Any:
        """Move from the meta device to that of a dense layer, and start from its weight."""
        self.to_empty(device=dense.weight.device)
        if dense.weight.device.type != "meta":
            self._start_from(dense)
        return self.train(dense.training)

    def share(self, factors: Iterable[Tensor], dense: Any) -> Any:
        """Compute with the factors of another layer, as the dense layers do whose weight is tied, and with its bias."""
        for position, factor in enumerate(factors):
            self.factors[position] = factor
        if self.bias is not None:
            self.bias = nn.Parameter(dense.bias.detach().clone(), requires_grad=dense.bias.requires_grad)
        return self.train(dense.training)

    @abstractmethod
    def _positions(self, input: Tensor) -> int:
        """How many positions the output has for an input of this shape."""

    @abstractmethod
    def _dense_layer(self, device: torch.device | str) -> Any:
        """An ordinary layer of the same configuration, freshly drawn unless on the meta device."""

    @abstractmethod
    def _step_by_step(self, input: Tensor) -> Tensor:
        """Apply the factors one after the other."""

    @abstractmethod
    def _at_once(self, input: Tensor) -> Tensor:
        """Apply the weight, formed first."""

    def _as_matrix(self, weight: Tensor) -> Float[Tensor, "m n"]:
        """A dense weight as the matrix that the factors multiply to."""
        return weight

    def _as_weight(self, matrix: Float[Tensor, "m n"]) -> Tensor:
        """The matrix as a dense weight."""
        return matrix
