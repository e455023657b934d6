"""A network with diagonal weights, `f(x; u * v)`, as the theory sees it: a loss of the vector of products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.coordinates import Coordinate
from rankwise.theory.smooth import check_smooth

if TYPE_CHECKING:
    from jaxtyping import Float, Int

# The step of a central difference whose rounding and truncation errors balance, as a share of the largest product.
DIFFERENCE = torch.finfo(torch.float64).eps ** (1 / 3)


class NotFinite(UserError):
    """A gradient is NaN or infinite: the text says at which products."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A loss `L(q)` of the product vector `q = u * v`, all in float64 torch tensors.

    Everything that gradient flow on `(u, v)` does follows from the force `g(q) = -dL/dq`:

        du/dt = v * g(u * v),    dv/dt = u * g(u * v).

    Arguments:
        size: the number of products, `p`.
        gradient: `dL/dq` (not its negative), from products `[p]` to `[p]`.
        loss: `L`, from products `[p]` to a scalar; without it losses are NaN.
        hessian: a block of the second derivative, from products `[p]` and the numbers of rows `[m]` and columns `[k]`
            to `[m, k]`; without it, central differences of the gradient.
        sample_gradient: the gradient of the loss of some samples alone, from products and the samples' numbers; for
            stochastic descent.
        samples: how many samples there are.
        coordinates: what each product is: layer, head, QK or VO, channel.

    >>> target = torch.tensor([2.0, -1.0], dtype=torch.float64)
    >>> problem = Problem(gradient=lambda q: q - target, size=2)
    >>> problem.force(torch.zeros(2, dtype=torch.float64))
    tensor([ 2., -1.], dtype=torch.float64)
    """

    size: int
    gradient: Callable[[Tensor], Tensor] = field(repr=False)
    loss: Callable[[Tensor], Tensor] | None = field(default=None, repr=False)
    hessian: Callable[[Tensor, Tensor, Tensor], Tensor] | None = field(default=None, repr=False)
    sample_gradient: Callable[[Tensor, Tensor], Tensor] | None = field(default=None, repr=False)
    samples: int | None = None
    coordinates: Sequence[Coordinate] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"a problem of size {self.size} has no products: give the length of the product vector")
        if self.coordinates is not None and len(self.coordinates) != self.size:
            raise UserError(f"{len(self.coordinates)} coordinates were named for {self.size} products: name each one")
        if (self.sample_gradient is None) != (self.samples is None):
            raise UserError("sample_gradient and samples belong together: give both, or neither")

    @classmethod
    def from_loss(
        cls, loss: Callable[[Tensor], Tensor], *, size: int, coordinates: Sequence[Coordinate] | None = None
    ) -> Problem:
        """A problem from a twice differentiable torch function of the product vector, by autograd.

        Functions with kinks (ReLU, absolute values, clamping) are refused: the theory needs two derivatives.

        >>> Problem.from_loss(lambda q: (q - 1).square().sum() / 2, size=3).force(torch.zeros(3).double())
        tensor([1., 1., 1.], dtype=torch.float64)
        """

        def gradient(products: Tensor) -> Tensor:
            products = products.detach().requires_grad_()
            with torch.enable_grad():
                return torch.autograd.grad(loss(products), products)[0]

        def value(products: Tensor) -> Tensor:
            with torch.no_grad():
                return loss(products)

        check_smooth(loss, size=size)
        return cls(size=size, gradient=gradient, loss=value, coordinates=coordinates)

    def force(self, products: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
        """The force `g(q) = -dL/dq`, checked: the right shape, float64, finite."""
        gradient = self.gradient(products)
        if gradient.shape != (self.size,) or gradient.dtype != torch.float64:
            raise UserError(
                f"the gradient is {_kind(gradient)}, expected torch.float64 of shape ({self.size},): the loss's "
                "derivative by the product vector"
            )
        if not math.isfinite(gradient.sum().item()) and not bool(gradient.isfinite().all()):
            bad = (~gradient.isfinite()).nonzero().flatten().tolist()
            raise NotFinite(
                f"the gradient of coordinate {self.name(bad[0])} is {gradient[bad[0]].item()} "
                f"({len(bad)} of {self.size} are not finite) at products of size {products.abs().max().item():.3g}: "
                "check the data for NaN and the loss for 0/0"
            )
        return -gradient.detach()

    def value(self, products: Float[Tensor, " p"]) -> float:
        """The loss, or NaN where the problem has none."""
        return math.nan if self.loss is None else float(self.loss(products))

    def hessian_block(
        self, products: Float[Tensor, " p"], rows: Int[Tensor, " m"], columns: Int[Tensor, " k"]
    ) -> Float[Tensor, "m k"]:
        """A block of the second derivative of the loss.

        Where the problem has no `hessian`, central differences at a step of `6e-6` of the largest product (of 1 at
        zero): the error is about `1e-10` of the gradient's change over a product of that size.
        """
        if self.hessian is not None:
            return self.hessian(products, rows, columns)
        step = max(DIFFERENCE * (products.abs().max().item() or 1.0), 1e-150)
        found = products.new_zeros(len(rows), len(columns))
        for place, column in enumerate(columns.tolist()):
            ahead, behind = products.clone(), products.clone()
            ahead[column] += step
            behind[column] -= step
            width = ahead[column] - behind[column]
            found[:, place] = (self.force(behind) - self.force(ahead))[rows] / width
        return found

    def with_decay(self, coefficient: float) -> Problem:
        """The same problem with `coefficient / 2 |q|^2` added to the loss: it makes every stage settle.

        >>> Problem(gradient=torch.zeros_like, size=1).with_decay(0.5).force(torch.ones(1).double())
        tensor([-0.5000], dtype=torch.float64)
        """
        if not coefficient >= 0:
            raise UserError(f"a decay of {coefficient} was asked for: give a number that is not negative")
        loss, hessian, one = self.loss, self.hessian, self.sample_gradient
        return replace(
            self,
            gradient=lambda q: self.gradient(q) + coefficient * q,
            loss=None if loss is None else lambda q: loss(q) + coefficient / 2 * q.square().sum(),
            hessian=None
            if hessian is None
            else lambda q, rows, columns: hessian(q, rows, columns) + coefficient * (rows[:, None] == columns).to(q),
            sample_gradient=None if one is None else lambda q, chosen: one(q, chosen) + coefficient * q,
        )

    def scaled(self, factor: float) -> Problem:
        """The same problem with its loss multiplied: every time is divided by the factor."""
        if not factor > 0:
            raise UserError(f"a loss was to be multiplied by {factor}: give a positive number")
        loss, hessian, one = self.loss, self.hessian, self.sample_gradient
        return replace(
            self,
            gradient=lambda q: factor * self.gradient(q),
            loss=None if loss is None else lambda q: factor * loss(q),
            hessian=None if hessian is None else lambda q, rows, columns: factor * hessian(q, rows, columns),
            sample_gradient=None if one is None else lambda q, chosen: factor * one(q, chosen),
        )

    def name(self, coordinate: int) -> str:
        """A coordinate as a person reads it: its number, and its place in the network where that is known."""
        return str(coordinate) if self.coordinates is None else f"{coordinate} ({self.coordinates[coordinate]})"


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"
