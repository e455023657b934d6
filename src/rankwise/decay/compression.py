"""Compression-rate scaling: weight decay on the factors, weaker by what the layer was compressed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from rankwise.decay.base import Coefficient, Decay
from rankwise.decay.products import Target
from rankwise.decay.stacks import PLAIN, Task
from rankwise.errors import UserError
from rankwise.product.multipliers import Multipliers
from rankwise.product.product import Product


class CompressionRateDecay(Decay):
    """Weight decay on every factor, times the share of parameters that factorizing left (Gray et al., "CRS").

        F = ratio * sum_i |A_i|_F^2 / 2,   ratio = (numbers in the factors) / (numbers in the dense matrix).

    It rescales the coefficient and changes nothing else: it presses on the rank as weight decay does, where Frobenius
    decay has the dense layer's own effect. It is here as the baseline that it is in the literature.

    Arguments:
        target, coefficient, decoupled, model: as for every decay.
        ratio: one ratio for all products, such as that of the whole network; each product's own by default.
    """

    from_grams = False

    def __init__(
        self,
        target: Target,
        *,
        coefficient: Coefficient | None = None,
        ratio: float | None = None,
        decoupled: bool | None = None,
        model: nn.Module | None = None,
    ) -> None:
        if ratio is not None and not 0 < ratio < float("inf"):
            raise UserError(f"ratio must be a positive number, compressed parameters over original ones, got {ratio}")
        self.ratio = ratio
        super().__init__(target, coefficient=coefficient, decoupled=decoupled, model=model)

    def ratio_of(self, product: Product) -> float:
        """The numbers in a product's factors over those in the matrices that they make.

        >>> import torch
        >>> layer = nn.Sequential(nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False))
        >>> CompressionRateDecay(layer).ratio_of(Product(torch.randn(8, 2), torch.randn(2, 8)))
        0.5
        """
        return self.ratio or sum(factor.numel() for factor in product.factors) / product.shape.numel()

    def gradients(self, product: Product, task: Task = PLAIN) -> tuple[Tensor, ...]:
        return tuple(self.ratio_of(product) * factor for factor in product.factors)

    def value(self, product: Product) -> Tensor:
        squares = (factor.float().square().sum() for factor in product.factors)
        return self.ratio_of(product) * sum(squares, product.left.new_zeros(())) / 2

    def multipliers(self, first: Tensor, inner: Sequence[Tensor], last: Tensor, task: Task) -> Multipliers:
        raise AssertionError("this decay needs no Grams")
