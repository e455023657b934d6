"""The tensorized convolution of the paper: a dense window for each channel, then a tensorized mixing of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankwise.layers.conv2d import PaddingMode, Pair
from rankwise.layers.geometry import Geometry, arguments_of, convolved
from rankwise.layers.initialization import Init
from rankwise.layers.tensor_ranks import Form, matrix_ranks
from rankwise.layers.tensorized import TensorizedLayer, chosen_ranks
from rankwise.layers.tensorized_linear import checked_modes
from rankwise.product.guarded import thin_svd

if TYPE_CHECKING:
    from jaxtyping import Float


class TensorizedSeparableConv2d(TensorizedLayer):
    """A dense depthwise `k x k` convolution, then a `1 x 1` one whose matrix is in CP, Tucker or tensor-train form.

    The kernel is `K[o, i] = P[o, i] D[i]`: whatever the ranks are, this is another architecture than an ordinary
    convolution, of far fewer weights. `frobenius_penalty` is that of `P`; `D` keeps its ordinary decay, as in the
    paper. The matrix is rebuilt in every forward pass.

    Arguments:
        in_channels, out_channels, kernel_size, stride, padding, dilation, padding_mode: as in `torch.nn.Conv2d`.
        form: "tensor-train", "tucker" or "cp".
        ranks: the ranks, one number for all or one for each; or
        scale: the share of the largest ranks, as `matrix_ranks` counts them: the paper's rank scale.
        modes: what the entries `[out, in]` of `P` are reshaped to; three nearly equal sizes by default.
        groups: 1; a grouped convolution is one kernel for each group.
        bias: whether there is a bias.
        init: how the cores start; "spectral" is the decomposition of a `1 x 1` convolution's own draw, balanced. (The
            paper's "spectral" arm draws with `Spectral(draw=lambda w: w.normal_(std=(2 / out_channels) ** 0.5))`, its
            "regular" one with torch's default, as here.)

    >>> layer = TensorizedSeparableConv2d(160, 160, 3, scale=0.234, padding=1, bias=False)
    >>> sum(parameter.numel() for parameter in layer.parameters()), layer.weight.shape
    (3158, torch.Size([160, 160, 3, 3]))
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        *,
        form: Form = "tensor-train",
        ranks: int | Sequence[int] | None = None,
        scale: float | None = None,
        modes: Sequence[int] | None = None,
        stride: int | Pair = 1,
        padding: int | Pair | str = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        init: Init = "spectral",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        dense = nn.Conv2d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            padding_mode=padding_mode,
            device="meta",
        )
        geometry = Geometry.of(dense)
        modes = checked_modes(modes, (out_channels, in_channels))
        given = chosen_ranks(ranks, scale, lambda share: matrix_ranks(form, modes, share))
        super().__init__(modes, form=form, ranks=given, init=init, device=device, dtype=dtype)
        self.geometry = geometry
        self.depthwise = nn.Parameter(torch.empty(in_channels, 1, *geometry.window.size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @classmethod
    def from_dense(
        cls,
        dense: nn.Conv2d,
        *,
        form: Form = "tensor-train",
        ranks: int | Sequence[int] | None = None,
        scale: float | None = None,
        modes: Sequence[int] | None = None,
        init: Init = "spectral",
    ) -> TensorizedSeparableConv2d:
        """The best separable approximation of a dense convolution, its mixing of the channels in a tensor form.

        For every input channel the leading singular pair of `K[:, i]`, as a matrix of output channels by window, is
        the column `P[:, i]` and the window `D[i]`. A kernel that is not separable loses what the pair leaves.
        """
        layer = cls(**arguments_of(dense), form=form, ranks=ranks, scale=scale, modes=modes, init=init)
        return layer.settle(dense)

    @property
    def pointwise(self) -> Float[Tensor, "o i"]:
        """The matrix that mixes the channels, computed anew and differentiable."""
        return self.tensor.dense().reshape(self.geometry.out_channels, self.geometry.in_channels)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the depthwise and the `1 x 1` convolution as torch does, and start from them."""
        if self.depthwise.device.type == "meta":
            return
        geometry, made = self.geometry, {"device": self.depthwise.device, "dtype": self.depthwise.dtype}
        channels = geometry.in_channels
        self.depthwise.copy_(nn.Conv2d(channels, channels, geometry.window.size, groups=channels, **made).weight)
        mixing = nn.Conv2d(channels, geometry.out_channels, 1, bias=self.bias is not None, **made)
        self._start_cores(mixing.weight[..., 0, 0])
        if self.bias is not None and mixing.bias is not None:
            self.bias.copy_(mixing.bias)

    def forward(self, input: Float[Tensor, "*batch i h w"]) -> Float[Tensor, "*batch o h w"]:
        geometry = self.geometry
        seen = convolved(geometry.padded(input), self.depthwise, geometry.window, groups=geometry.in_channels)
        return nn.functional.conv2d(seen, self.pointwise[..., None, None], self.bias)

    @torch.no_grad()
    def _start_from(self, dense: Any) -> None:
        kernel = dense.weight.detach().double().flatten(2).transpose(0, 1)
        left, values, right = thin_svd(kernel)
        roots = values[:, :1].sqrt()
        self.depthwise.copy_((right[:, 0] * roots).reshape(self.depthwise.shape))
        self.depthwise.requires_grad_(dense.weight.requires_grad)
        mixing = (left[..., 0] * roots).mT
        # A function fills whatever it is given: only a decomposition has a use for the dense weight.
        self._start_cores(mixing.to(dense.weight.dtype))
        for core in self.cores:
            core.requires_grad_(dense.weight.requires_grad)
        if self.bias is not None:
            self.bias.copy_(dense.bias)
            self.bias.requires_grad_(dense.bias.requires_grad)

    def _as_weight(self, tensor: Tensor) -> Tensor:
        mixing = tensor.reshape(self.geometry.out_channels, self.geometry.in_channels, 1, 1)
        return mixing * self.depthwise.to(tensor.dtype).transpose(0, 1)

    def _dense_layer(self, device: torch.device | str) -> nn.Conv2d:
        return self.geometry.dense(bias=self.bias is not None, device=device, dtype=self.depthwise.dtype)

    def extra_repr(self) -> str:
        return f"{self.geometry.words}, {self._words()}"
