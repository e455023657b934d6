"""Compression-rate scaling: weight decay on the factors, weaker by what the layer was compressed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rankwise.decay import tensorized
from rankwise.decay.base import Coefficient, Decay
from rankwise.decay.products import Collected, Target
from rankwise.decay.stacks import PLAIN, Task
from rankwise.errors import UserError
from rankwise.product.multipliers import Multipliers
from rankwise.product.product import Product
from rankwise.product.tensor_forms import TensorForm


class CompressionRateDecay(Decay):
    """Weight decay on every factor, times the share of parameters that factorizing left (Gray et al., "CRS").

        F = ratio * sum_i |A_i|_F^2 / 2,   ratio = (numbers in the factors) / (numbers in the dense matrix),

    and likewise for the cores of a tensorized layer.

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
        return self.ratio_of(product) * _half_squares(product.factors)

    def module_gradients(self, module: nn.Module) -> tensorized.Gradients:
        ratio = self._ratio_of_module(module)
        return {core: ratio * core.detach() for core in tensorized.cores(module)}

    def module_value(self, module: nn.Module) -> Tensor:
        return self._ratio_of_module(module) * _half_squares([*tensorized.cores(module)])

    def _ratio_of_module(self, module: nn.Module) -> float:
        if self.ratio is not None:
            return self.ratio
        tensor = getattr(module, "tensor", None)
        if not isinstance(tensor, TensorForm):
            raise UserError(f"{type(module).__name__} does not say how large its tensor is (.tensor): give ratio=")
        return tensor.parameters / tensor.shape.numel()

    def _checked(self, collected: Collected) -> Collected:
        for _, module in collected.modules:
            self._ratio_of_module(module)
        return collected

    def multipliers(self, first: Tensor, inner: Sequence[Tensor], last: Tensor, task: Task) -> Multipliers:
        raise AssertionError("this decay needs no Grams")


def _half_squares(factors: Sequence[Tensor]) -> Tensor:
    return torch.stack([factor.detach().double().square().sum() for factor in factors]).sum() / 2
