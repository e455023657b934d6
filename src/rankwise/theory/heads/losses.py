"""Losses of several products at once, and the one of an attention head with full matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.factorized.losses import MatrixLoss

if TYPE_CHECKING:
    from jaxtyping import Float

Products = tuple[Tensor, ...]


class ProductsLoss(Protocol):
    """A smooth loss of the products of a network: all that training its factors depends on."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the products."""
        ...

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Of the products."""
        ...

    def value(self, products: Products) -> float:
        """The loss."""
        ...

    def gradient(self, products: Products) -> Products:
        """Its derivative by each product."""
        ...


@dataclass(frozen=True)
class SingleProduct:
    """A loss of one matrix, as a loss of products.

    >>> SingleProduct(MatrixLoss.denoising(torch.eye(2))).shapes
    ((2, 2),)
    """

    loss: MatrixLoss
    names: tuple[str, ...] = ("product",)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        return (self.loss.shape,)

    def value(self, products: Products) -> float:
        return float(self.loss.value(products[0]))

    def gradient(self, products: Products) -> Products:
        return (self.loss.gradient(products[0]),)


@dataclass(frozen=True)
class HeadLoss:
    """One attention head with full matrices that learns from examples, without a scale on its logits,

        L = mean over samples and tokens of 1/2 |softmax(X QK X^T) X OV^T - Y|^2.

    The left index of `QK` is the query, the right one the key; `OV` takes the attended token's input to the output.

    Arguments:
        inputs: `X`.
        targets: `Y`, for instance what a teacher writes: `full_attention(inputs, ...)`.

    >>> generator = torch.Generator().manual_seed(0)
    >>> inputs = torch.randn(8, 5, 3, generator=generator, dtype=torch.float64)
    >>> loss = HeadLoss(inputs, full_attention(inputs, torch.eye(3).double(), torch.eye(3).double()))
    >>> loss.value((torch.eye(3).double(), torch.eye(3).double()))
    0.0
    """

    inputs: Float[Tensor, "samples tokens d"] = field(repr=False)
    targets: Float[Tensor, "samples tokens d"] = field(repr=False)
    names: tuple[str, ...] = ("QK", "OV")

    def __post_init__(self) -> None:
        inputs, targets = (torch.as_tensor(one).detach().double() for one in (self.inputs, self.targets))
        if inputs.ndim != 3 or inputs.shape[:2] != targets.shape[:2] or targets.ndim != 3:
            raise UserError(
                f"inputs {tuple(inputs.shape)} and targets {tuple(targets.shape)} were given: give both as "
                "[samples, tokens, width]"
            )
        if not bool(inputs.isfinite().all() and targets.isfinite().all()):
            raise UserError("the head's inputs or targets hold NaN or Inf: give finite numbers")
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "targets", targets)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        width = self.inputs.shape[-1]
        return (width, width), (self.targets.shape[-1], width)

    def value(self, products: Products) -> float:
        return float((full_attention(self.inputs, *products) - self.targets).square().sum()) / (2 * self._places)

    def gradient(self, products: Products) -> Products:
        query_key, output_value = products
        x = self.inputs
        weights = torch.softmax((x @ query_key) @ x.mT, -1)
        mixed = weights @ x
        errors = (mixed @ output_value.mT - self.targets) / self._places
        by_weights = (errors @ output_value) @ x.mT
        by_logits = weights * (by_weights - (by_weights * weights).sum(-1, keepdim=True))
        turned = (by_logits @ x).flatten(0, 1)
        return x.flatten(0, 1).mT @ turned, errors.flatten(0, 1).mT @ mixed.flatten(0, 1)

    @property
    def _places(self) -> int:
        return self.inputs.shape[0] * self.inputs.shape[1]


def full_attention(
    inputs: Float[Tensor, "samples tokens d"], query_key: Float[Tensor, "d d"], output_value: Float[Tensor, "e d"]
) -> Float[Tensor, "samples tokens e"]:
    """What a head with full matrices writes: `softmax(X QK X^T) X OV^T`, without a scale.

    >>> full_attention(torch.ones(1, 3, 2), torch.zeros(2, 2), 2 * torch.eye(2))[0, 0]
    tensor([2., 2.])
    """
    return (torch.softmax((inputs @ query_key) @ inputs.mT, -1) @ inputs) @ output_value.mT


def check_starts(loss: ProductsLoss, starts: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Whether there is a pair of factors for each product, of its shape."""
    found = tuple((left.shape[0], right.shape[-1]) for left, right in starts)
    if found != tuple(loss.shapes):
        raise UserError(
            f"the starts multiply to {', '.join(map(str, found)) or 'nothing'}; give one pair of factors for each of "
            f"{', '.join(f'{name} {shape}' for name, shape in zip(loss.names, loss.shapes, strict=True))}"
        )
