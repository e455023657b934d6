"""How a two-dimensional convolution looks at its input, apart from its kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankwise.errors import UserError
from rankwise.layers.conv2d import Pair, Window


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The sizes and the window of a convolution, as `torch.nn.Conv2d` understands its arguments.

    Arguments:
        in_channels, out_channels: the channels.
        window: size, stride, padding and dilation of the convolution itself.
        around: what is padded beforehand, as `torch.nn.functional.pad` takes it; None where the convolution pads.
        padding, padding_mode: as given.
    """

    in_channels: int
    out_channels: int
    window: Window
    around: tuple[int, int, int, int] | None
    padding: Any
    padding_mode: str

    @classmethod
    def of(cls, dense: nn.Conv2d) -> Geometry:
        """The geometry of a convolution; grouped ones are refused."""
        if dense.groups != 1:
            raise UserError(
                f"a convolution with groups={dense.groups} is {dense.groups} kernels, one for each group, and has no "
                "tensorized form: leave it dense"
            )
        left, right, top, bottom = dense._reversed_padding_repeated_twice
        # A convolution pads evenly and with zeros; whatever else there is to pad is put around the input beforehand.
        beforehand = dense.padding_mode != "zeros" or (left, top) != (right, bottom)
        size, stride, dilation = (_pair(each) for each in (dense.kernel_size, dense.stride, dense.dilation))
        return cls(
            in_channels=dense.in_channels,
            out_channels=dense.out_channels,
            window=Window(size, stride, (0, 0) if beforehand else (top, left), dilation),
            around=(left, right, top, bottom) if beforehand else None,
            padding=dense.padding,
            padding_mode=dense.padding_mode,
        )

    def dense(self, *, bias: bool, device: torch.device | str, dtype: torch.dtype) -> nn.Conv2d:
        """The ordinary convolution of this geometry, freshly drawn unless on the meta device."""
        return nn.Conv2d(
            self.in_channels,
            self.out_channels,
            self.window.size,
            stride=self.window.stride,
            padding=self.padding,
            dilation=self.window.dilation,
            bias=bias,
            padding_mode=self.padding_mode,  # pyright: ignore[reportArgumentType]
            device=device,
            dtype=dtype,
        )

    def padded(self, input: Tensor) -> Tensor:
        """The input with what is padded beforehand around it."""
        if self.around is None:
            return input
        return F.pad(input, self.around, mode="constant" if self.padding_mode == "zeros" else self.padding_mode)

    def positions(self, input: Tensor) -> int:
        """How many pixels the output has, over all images."""
        left, right, top, bottom = self.around or (self.window.padding[1],) * 2 + (self.window.padding[0],) * 2
        high, broad = (
            (size - reach * (wide - 1) - 1) // step + 1
            for size, wide, step, reach in zip(
                (input.shape[-2] + top + bottom, input.shape[-1] + left + right),
                self.window.size,
                self.window.stride,
                self.window.dilation,
                strict=True,
            )
        )
        return input.numel() // (self.in_channels * input.shape[-2] * input.shape[-1]) * high * broad

    @property
    def words(self) -> str:
        """The arguments in short, for people."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.window.size}, stride={self.window.stride}"
        if self.padding != (0, 0):
            text += f", padding={self.padding!r}"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode!r}"
        return text if self.window.dilation == (1, 1) else f"{text}, dilation={self.window.dilation}"


def arguments_of(dense: nn.Conv2d) -> dict[str, Any]:
    """The arguments that make a layer of the same configuration as a dense one, without values."""
    return {
        "in_channels": dense.in_channels,
        "out_channels": dense.out_channels,
        "kernel_size": dense.kernel_size,
        "stride": dense.stride,
        "padding": dense.padding,
        "dilation": dense.dilation,
        "groups": dense.groups,
        "bias": dense.bias is not None,
        "padding_mode": dense.padding_mode,
        "device": "meta",
        "dtype": dense.weight.dtype,
    }


def convolved(input: Tensor, kernel: Tensor, window: Window, *, bias: Tensor | None = None, groups: int = 1) -> Tensor:
    """A convolution by a kernel through a window."""
    return F.conv2d(input, kernel, bias, window.stride, window.padding, window.dilation, groups)


def _pair(sizes: tuple[int, ...]) -> Pair:
    first, second = sizes
    return first, second
