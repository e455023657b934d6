"""A linear layer whose weight is a product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankwise.layers.base import Execution, FactorizedLayer, check_dense
from rankwise.layers.cost import Step, Work
from rankwise.layers.initialization import Init

if TYPE_CHECKING:
    from jaxtyping import Float


class FactorizedLinear(FactorizedLayer):
    """`y = U (M ... (V^T x)) + b`: a linear layer with the weight `U M ... V^T`, of shape `[out, in]`.

    Arguments:
        in_features, out_features: as in `torch.nn.Linear`.
        rank: the inner width `r`; the layer has `r (in + out)` weights, and `r^2` more for each inner factor.
        depth: how many inner factors there are.
        bias: whether there is a bias.
        overcomplete: allow a rank above `min(in, out)`.
        init: how the factors start; see `rankwise.Spectral`.
        execution: "two-step", "one-step", or the cheaper one ("auto").

    >>> layer = FactorizedLinear(768, 3072, rank=64)
    >>> layer
    FactorizedLinear(in_features=768, out_features=3072, rank=64, depth=0, bias=True, execution='auto')
    >>> layer.weight.shape, layer(torch.randn(2, 768)).shape
    (torch.Size([3072, 768]), torch.Size([2, 3072]))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        rank: int,
        depth: int = 0,
        bias: bool = True,
        overcomplete: bool = False,
        init: Init = "spectral",
        execution: Execution = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            out_features,
            in_features,
            rank=rank,
            depth=depth,
            overcomplete=overcomplete,
            init=init,
            execution=execution,
            device=device,
            dtype=dtype,
        )
        self.in_features = in_features
        self.out_features = out_features
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @classmethod
    def from_dense(
        cls,
        dense: nn.Linear,
        *,
        rank: int,
        depth: int = 0,
        overcomplete: bool = False,
        init: Init = "spectral",
        execution: Execution = "auto",
    ) -> FactorizedLinear:
        """A factorized layer in place of a dense one, which is left alone.

        >>> dense = torch.nn.Linear(6, 4)
        >>> exact = FactorizedLinear.from_dense(dense, rank=4)
        >>> torch.allclose(exact.weight, dense.weight, atol=1e-6)
        True
        """
        cls._check(dense)
        layer = cls.like(dense, rank=rank, depth=depth, overcomplete=overcomplete, init=init, execution=execution)
        return layer.settle(dense)

    @classmethod
    def like(
        cls,
        dense: nn.Linear,
        *,
        rank: int,
        depth: int = 0,
        overcomplete: bool = False,
        init: Init = "spectral",
        execution: Execution = "auto",
    ) -> FactorizedLinear:
        """A factorized layer of the same configuration, without values, on the meta device."""
        return cls(
            dense.in_features,
            dense.out_features,
            rank=rank,
            depth=depth,
            bias=dense.bias is not None,
            overcomplete=overcomplete,
            init=init,
            execution=execution,
            device="meta",
            dtype=dense.weight.dtype,
        )

    @staticmethod
    def _check(dense: object) -> None:
        check_dense(dense, nn.Linear)

    def work(self, step: Step) -> Work:
        rows, columns, rank = self.out_features, self.in_features, self.rank
        if step == "one-step":
            return Work(rows * columns, moved=rows + columns)
        return Work(rank * (rows + columns + self.depth * rank), moved=rows + columns + 2 * (self.depth + 1) * rank)

    def _positions(self, input: Tensor) -> int:
        return input.numel() // self.in_features

    def _step_by_step(self, input: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch m"]:
        hidden = input
        for factor in list(self.factors)[:0:-1]:
            hidden = F.linear(hidden, factor)
        return F.linear(hidden, self.factors[0], self.bias)

    def _at_once(self, input: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch m"]:
        return F.linear(input, self.weight, self.bias)

    def _dense_layer(self, device: torch.device | str) -> nn.Linear:
        return nn.Linear(
            self.in_features,
            self.out_features,
            bias=self.bias is not None,
            device=device,
            dtype=self.factors[0].dtype,
        )

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, rank={self.rank}, depth={self.depth}, "
            f"bias={self.bias is not None}, execution={self.execution!r}"
        )
