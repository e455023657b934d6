"""A convolution whose kernel is a product, along its two directions or across its channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankwise.errors import UserError
from rankwise.layers.base import Execution, FactorizedLayer, check_dense
from rankwise.layers.cost import Step, Work
from rankwise.layers.initialization import Init
from rankwise.layers.kernel_matrix import (
    Form,
    KernelShape,
    check_form,
    kernel_to_matrix,
    matrix_shape,
    matrix_to_kernel,
)

if TYPE_CHECKING:
    from jaxtyping import Float

Pair = tuple[int, int]
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


class Window(NamedTuple):
    """How one convolution looks at its input."""

    size: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)


class FactorizedConv2d(FactorizedLayer):
    """A convolution with the kernel `U M ... V^T`, as convolutions in turn or as the one with that kernel.

    In the "spatial" form a `1 x k` convolution with `r` output channels (`V`) is followed by a `k x 1` one (`U`); in
    the "channel" form a `k x k` convolution with `r` output channels is followed by a `1 x 1` one. Inner factors are
    `1 x 1` convolutions in between. The parameters are `kernel_factors`, matrices; `kernel_to_matrix` says their order.

    Arguments:
        in_channels, out_channels, kernel_size, stride, padding, dilation, padding_mode: as in `torch.nn.Conv2d`.
        rank: the inner width `r`.
        depth: how many inner factors there are.
        form: "spatial" or "channel".
        groups: 1; a grouped convolution is one product for each group.
        bias: whether there is a bias.
        overcomplete: allow a rank above the smaller side of the matrix.
        init: how the factors start; see `rankwise.Spectral`.
        execution: "two-step", "one-step", or the cheaper one ("auto").

    >>> layer = FactorizedConv2d(16, 32, 3, rank=8, stride=2, padding=1)
    >>> layer.weight.shape, layer(torch.randn(1, 16, 8, 8)).shape
    (torch.Size([32, 16, 3, 3]), torch.Size([1, 32, 4, 4]))
    """

    kernel_factors: nn.ParameterList
    _list_name = "kernel_factors"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        *,
        rank: int,
        depth: int = 0,
        form: Form = "spatial",
        stride: int | Pair = 1,
        padding: int | Pair | str = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        overcomplete: bool = False,
        init: Init = "spectral",
        execution: Execution = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_form(form)
        if groups != 1:
            raise UserError(
                f"a convolution with groups={groups} is {groups} products, one for each group, and has no factorized "
                "form: leave it dense"
            )
        # The dense layer checks and completes what was given; its weight is never allocated.
        dense: Any = nn.Conv2d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            padding_mode=padding_mode,
            device="meta",
        )
        kernel_shape: KernelShape = (out_channels, in_channels, *dense.kernel_size)
        super().__init__(
            *matrix_shape(kernel_shape, form),
            rank=rank,
            depth=depth,
            overcomplete=overcomplete,
            init=init,
            execution=execution,
            device=device,
            dtype=dtype,
        )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.form: Form = form
        self.kernel_shape: KernelShape = kernel_shape
        self.kernel_size: Pair = dense.kernel_size
        self.stride: Pair = dense.stride
        self.dilation: Pair = dense.dilation
        self.padding: Pair | str = dense.padding
        self.padding_mode: PaddingMode = padding_mode
        left, right, top, bottom = dense._reversed_padding_repeated_twice
        self._around: tuple[int, int, int, int] = (left, right, top, bottom)
        # A convolution pads evenly and with zeros; whatever else there is to pad is put around the input beforehand.
        self._pads_beforehand = padding_mode != "zeros" or (left, top) != (right, bottom)
        evenly = (0, 0) if self._pads_beforehand else (top, left)
        self._whole = Window(self.kernel_size, self.stride, evenly, self.dilation)
        self._first, self._last = _split(self._whole, form)
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @classmethod
    def from_dense(
        cls,
        dense: nn.Conv2d,
        *,
        rank: int,
        depth: int = 0,
        form: Form = "spatial",
        overcomplete: bool = False,
        init: Init = "spectral",
        execution: Execution = "auto",
    ) -> FactorizedConv2d:
        """A factorized convolution in place of a dense one, which is left alone.

        >>> dense = torch.nn.Conv2d(4, 6, 3, padding="same", padding_mode="circular")
        >>> exact, images = FactorizedConv2d.from_dense(dense, rank=12), torch.randn(2, 4, 5, 5)
        >>> torch.allclose(exact(images), dense(images), atol=1e-5)
        True
        """
        check_dense(dense, nn.Conv2d)
        layer = cls.like(
            dense, rank=rank, depth=depth, form=form, overcomplete=overcomplete, init=init, execution=execution
        )
        return layer.settle(dense)

    @classmethod
    def like(
        cls,
        dense: nn.Conv2d,
        *,
        rank: int,
        depth: int = 0,
        form: Form = "spatial",
        overcomplete: bool = False,
        init: Init = "spectral",
        execution: Execution = "auto",
    ) -> FactorizedConv2d:
        """A factorized convolution of the same configuration, without values, on the meta device."""
        return cls(
            dense.in_channels,
            dense.out_channels,
            dense.kernel_size,  # pyright: ignore[reportArgumentType] - torch types its pairs as tuples of any length
            rank=rank,
            depth=depth,
            form=form,
            stride=dense.stride,  # pyright: ignore[reportArgumentType]
            padding=dense.padding,  # pyright: ignore[reportArgumentType]
            dilation=dense.dilation,  # pyright: ignore[reportArgumentType]
            groups=dense.groups,
            bias=dense.bias is not None,
            padding_mode=dense.padding_mode,
            overcomplete=overcomplete,
            init=init,
            execution=execution,
            device="meta",
            dtype=dense.weight.dtype,
        )

    @property
    def factors(self) -> nn.ParameterList:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.kernel_factors

    def work(self, step: Step) -> Work:
        rows, columns = matrix_shape(self.kernel_shape, self.form)
        # For each pixel of the output the window moves over some of the input, and the first of two convolutions makes
        # as many rows as the second one skips over.
        read = self.in_channels * self.stride[0] * self.stride[1]
        if step == "one-step":
            return Work(rows * columns, moved=read + self.out_channels)
        made = self._last.stride[0] * self.rank
        return Work(
            made * (columns + self.depth * self.rank) + self.rank * rows,
            moved=read + 2 * (self.depth + 1) * made + self.out_channels,
        )

    def _positions(self, input: Tensor) -> int:
        left, right, top, bottom = self._around
        high = _steps(input.shape[-2] + top + bottom, 0, self._whole)
        broad = _steps(input.shape[-1] + left + right, 1, self._whole)
        return input.numel() // (self.in_channels * input.shape[-2] * input.shape[-1]) * high * broad

    def _step_by_step(self, input: Float[Tensor, "*batch i h w"]) -> Float[Tensor, "*batch o h w"]:
        *rest, right = self.kernel_factors
        across = right.reshape(self.rank, self.in_channels, *self._first.size)
        hidden = _convolve(self._padded(input), across, self._first)
        for factor in rest[:0:-1]:
            hidden = F.conv2d(hidden, factor[..., None, None])
        down = rest[0].reshape(self.out_channels, self._last.size[0], self.rank).transpose(1, 2)[..., None]
        return _convolve(hidden, down, self._last, self.bias)

    def _at_once(self, input: Float[Tensor, "*batch i h w"]) -> Float[Tensor, "*batch o h w"]:
        return _convolve(self._padded(input), self.weight, self._whole, self.bias)

    def _padded(self, input: Tensor) -> Tensor:
        if not self._pads_beforehand:
            return input
        return F.pad(input, self._around, mode="constant" if self.padding_mode == "zeros" else self.padding_mode)

    def _as_matrix(self, weight: Tensor) -> Tensor:
        return kernel_to_matrix(weight, self.form)

    def _as_weight(self, matrix: Tensor) -> Tensor:
        return matrix_to_kernel(matrix, self.kernel_shape, self.form)

    def _dense_layer(self, device: torch.device | str) -> nn.Conv2d:
        return nn.Conv2d(
            self.in_channels,
            self.out_channels,
            self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            bias=self.bias is not None,
            padding_mode=self.padding_mode,
            device=device,
            dtype=self.kernel_factors[0].dtype,
        )

    def extra_repr(self) -> str:
        words = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != (0, 0):
            words += f", padding={self.padding!r}"
        if self.padding_mode != "zeros":
            words += f", padding_mode={self.padding_mode!r}"
        if self.dilation != (1, 1):
            words += f", dilation={self.dilation}"
        return (
            f"{words}, form={self.form!r}, rank={self.rank}, depth={self.depth}, bias={self.bias is not None}, "
            f"execution={self.execution!r}"
        )


def _split(whole: Window, form: Form) -> tuple[Window, Window]:
    """The first and the last of the convolutions that make up a whole one."""
    (height, width), (down, along), (pad_down, pad_along), (reach_down, reach_along) = whole
    # A window without height is one direction: the first convolution does it all, and skips rows as early as it can.
    if form == "channel" or height == 1:
        return whole, Window((1, 1))
    return (
        Window((1, width), (1, along), (0, pad_along), (1, reach_along)),
        Window((height, 1), (down, 1), (pad_down, 0), (reach_down, 1)),
    )


def _convolve(input: Tensor, kernel: Tensor, window: Window, bias: Tensor | None = None) -> Tensor:
    return F.conv2d(input, kernel, bias, window.stride, window.padding, window.dilation)


def _steps(size: int, axis: int, window: Window) -> int:
    """How many positions a window has along an axis of a padded input."""
    return (size - window.dilation[axis] * (window.size[axis] - 1) - 1) // window.stride[axis] + 1
