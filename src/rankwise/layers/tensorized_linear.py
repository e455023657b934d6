"""A linear layer whose weight is a small tensor network."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankwise.errors import UserError
from rankwise.layers.cost import Step, Work
from rankwise.layers.initialization import Init
from rankwise.layers.tensor_ranks import Form, matrix_ranks, near_equal_modes
from rankwise.layers.tensorized import TensorizedLayer, chosen_ranks

if TYPE_CHECKING:
    from jaxtyping import Float


class TensorizedLinear(TensorizedLayer):
    """`y = W x + b` with the entries of `W`, in their order, as a tensor in CP, Tucker or tensor-train form.

    By default the entries are cut into three nearly equal modes, which in general cut across rows: no rank of the form
    is a rank of `W`. The weight is rebuilt in every forward pass, at a cost that does not grow with the batch.

    Arguments:
        in_features, out_features: as in `torch.nn.Linear`.
        form: "tensor-train", "tucker" or "cp".
        ranks: the ranks, one number for all or one for each; or
        scale: the share of the largest ranks, as `matrix_ranks` counts them.
        modes: what the entries `[out, in]` are reshaped to; three nearly equal sizes by default.
        bias: whether there is a bias.
        init: how the cores start; "spectral" is the decomposition of a dense layer's own draw, balanced.

    >>> layer = TensorizedLinear(160, 160, scale=0.2)
    >>> layer
    TensorizedLinear(in_features=160, out_features=160, form='tensor-train', modes=32x32x25, ranks=6x5, bias=True)
    >>> layer(torch.randn(2, 160)).shape, layer.tensor.parameters
    (torch.Size([2, 160]), 1277)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        form: Form = "tensor-train",
        ranks: int | Sequence[int] | None = None,
        scale: float | None = None,
        modes: Sequence[int] | None = None,
        bias: bool = True,
        init: Init = "spectral",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        modes = checked_modes(modes, (out_features, in_features))
        given = chosen_ranks(ranks, scale, lambda share: matrix_ranks(form, modes, share))
        super().__init__(modes, form=form, ranks=given, init=init, device=device, dtype=dtype)
        self.in_features = in_features
        self.out_features = out_features
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @classmethod
    def from_dense(
        cls,
        dense: nn.Linear,
        *,
        form: Form = "tensor-train",
        ranks: int | Sequence[int] | None = None,
        scale: float | None = None,
        modes: Sequence[int] | None = None,
        init: Init = "spectral",
    ) -> TensorizedLinear:
        """A tensorized layer in place of a dense one, which is left alone.

        >>> dense = nn.Linear(6, 4)
        >>> exact = TensorizedLinear.from_dense(dense, ranks=(4, 3), modes=(4, 2, 3))
        >>> torch.allclose(exact.weight, dense.weight, atol=1e-6)
        True
        """
        layer = cls(
            dense.in_features,
            dense.out_features,
            form=form,
            ranks=ranks,
            scale=scale,
            modes=modes,
            bias=dense.bias is not None,
            init=init,
            device="meta",
            dtype=dense.weight.dtype,
        )
        return layer.settle(dense)

    def work(self, step: Step) -> Work:
        """What each position takes: as much as the dense layer, whose weight is rebuilt."""
        return Work(self.in_features * self.out_features, moved=self.in_features + self.out_features)

    def forward(self, input: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch m"]:
        return F.linear(input, self.weight, self.bias)

    def _as_weight(self, tensor: Tensor) -> Tensor:
        return tensor.reshape(self.out_features, self.in_features)

    def _dense_layer(self, device: torch.device | str) -> nn.Linear:
        return nn.Linear(
            self.in_features,
            self.out_features,
            bias=self.bias is not None,
            device=device,
            dtype=self.cores[0].dtype,
        )

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self._words()}"


def checked_modes(modes: Sequence[int] | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Modes that were given for the entries of a weight, or three nearly equal ones."""
    if modes is None:
        return near_equal_modes(prod(shape))
    modes = tuple(modes)
    if len(modes) < 2 or prod(modes) != prod(shape) or any(size < 1 for size in modes):
        sizes = "x".join(map(str, shape))
        raise UserError(
            f"modes must be two or more whole numbers whose product is {prod(shape)} = {sizes}, got {modes}"
        )
    return modes
