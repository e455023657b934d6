"""A convolution whose kernel is a small tensor network."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rankwise.layers.base import Execution, check_execution
from rankwise.layers.conv2d import PaddingMode, Pair
from rankwise.layers.cost import Step, Work, one_step_is_cheaper
from rankwise.layers.geometry import Geometry, arguments_of, convolved
from rankwise.layers.initialization import Init
from rankwise.layers.stages import run, stages, work
from rankwise.layers.tensor_ranks import Form, kernel_ranks
from rankwise.layers.tensorized import TensorizedLayer, chosen_ranks

if TYPE_CHECKING:
    from jaxtyping import Float


class TensorizedConv2d(TensorizedLayer):
    """A convolution with a kernel in CP, Tucker or tensor-train form over its own modes `[out, height, width, in]`.

    Every form is a row of small convolutions: Tucker is `1 x 1`, `k x k` on few channels, `1 x 1`; CP the same with one
    window for each channel; a tensor train takes the window one direction at a time. They are run one after the other,
    or the kernel is rebuilt and run at once, whichever costs less. (The paper tensorizes something else: see
    `TensorizedSeparableConv2d`.)

    Arguments:
        in_channels, out_channels, kernel_size, stride, padding, dilation, padding_mode: as in `torch.nn.Conv2d`.
        form: "tensor-train", "tucker" or "cp".
        ranks: the ranks, one number for all or one for each mode (Tucker) or cut (tensor train); or
        scale: the share of the largest ranks, as `kernel_ranks` counts them.
        groups: 1; a grouped convolution is one kernel for each group.
        bias: whether there is a bias.
        init: how the cores start; "spectral" is the decomposition of a dense layer's own draw, balanced.
        execution: "two-step" for the small convolutions, "one-step" for the rebuilt kernel, or the cheaper one
            ("auto").

    >>> layer = TensorizedConv2d(32, 64, 3, form="tucker", scale=0.25, padding=1)
    >>> layer.ranks, layer(torch.randn(1, 32, 8, 8)).shape
    ((16, 3, 3, 8), torch.Size([1, 64, 8, 8]))
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
        stride: int | Pair = 1,
        padding: int | Pair | str = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        init: Init = "spectral",
        execution: Execution = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        # The dense layer checks and completes what was given; its weight is never allocated.
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
        modes = (out_channels, *geometry.window.size, in_channels)
        given = chosen_ranks(ranks, scale, lambda share: kernel_ranks(form, modes, share))
        super().__init__(modes, form=form, ranks=given, init=init, device=device, dtype=dtype)
        self.geometry = geometry
        self.execution = execution
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
        init: Init = "spectral",
        execution: Execution = "auto",
    ) -> TensorizedConv2d:
        """A tensorized convolution in place of a dense one, which is left alone.

        >>> dense = nn.Conv2d(4, 6, 3, padding="same", padding_mode="circular")
        >>> exact, images = TensorizedConv2d.from_dense(dense, scale=1.0), torch.randn(2, 4, 5, 5)
        >>> torch.allclose(exact(images), dense(images), atol=1e-5)
        True
        """
        layer = cls(**arguments_of(dense), form=form, ranks=ranks, scale=scale, init=init, execution=execution)
        return layer.settle(dense)

    @property
    def execution(self) -> Execution:
        return self._execution

    @execution.setter
    def execution(self, execution: Execution) -> None:
        check_execution(execution)
        self._execution: Execution = execution

    def execution_at(self, input: Tensor) -> Step:
        """What costs less for an input of this shape, forward and backward together."""
        at_once = self.work("one-step")
        cheaper = one_step_is_cheaper(
            step_by_step=self.work("two-step"),
            at_once=at_once,
            forming=max(self.ranks) * at_once.multiplications,
            positions=self.geometry.positions(input),
        )
        return "one-step" if cheaper else "two-step"

    def work(self, step: Step) -> Work:
        """What each pixel of the output takes in a forward pass, rebuilding the kernel left aside."""
        geometry = self.geometry
        if step == "two-step":
            return work(stages(self.tensor.to("meta"), geometry.window))
        read = geometry.in_channels * geometry.window.stride[0] * geometry.window.stride[1]
        return Work(prod(self.modes), moved=read + geometry.out_channels)

    def forward(self, input: Float[Tensor, "*batch i h w"]) -> Float[Tensor, "*batch o h w"]:
        step = self.execution_at(input) if self.execution == "auto" else self.execution
        padded, window = self.geometry.padded(input), self.geometry.window
        if step == "one-step":
            return convolved(padded, self.weight, window, bias=self.bias)
        return run(stages(self.tensor, window), padded, self.bias)

    def _as_tensor(self, weight: Tensor) -> Tensor:
        return weight.permute(0, 2, 3, 1)

    def _as_weight(self, tensor: Tensor) -> Tensor:
        return tensor.permute(0, 3, 1, 2)

    def _dense_layer(self, device: torch.device | str) -> nn.Conv2d:
        return self.geometry.dense(bias=self.bias is not None, device=device, dtype=self.cores[0].dtype)

    def extra_repr(self) -> str:
        return f"{self.geometry.words}, {self._words()}, execution={self.execution!r}"
