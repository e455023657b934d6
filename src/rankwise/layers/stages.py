"""A kernel in a tensor form as a row of small convolutions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rankwise.layers.conv2d import Window
from rankwise.layers.cost import Work
from rankwise.layers.geometry import convolved
from rankwise.product.cp import CP
from rankwise.product.tensor_forms import TensorForm
from rankwise.product.tensor_train import TensorTrain
from rankwise.product.tucker import Tucker


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One convolution of the row.

    Arguments:
        kernel: `[out, in / groups, height, width]`.
        window: its stride, padding and dilation.
        groups: 1, or the number of channels where each has a kernel of its own.
    """

    kernel: Tensor
    window: Window
    groups: int = 1

    @property
    def skipped(self) -> int:
        """How many positions of its input there are for one of its output."""
        return self.window.stride[0] * self.window.stride[1]


def stages(form: TensorForm, window: Window) -> list[Stage]:
    """The small convolutions of a kernel `[out, height, width, in]`, in the order in which they are run.

    Arguments:
        form: the kernel.
        window: that of the whole convolution, the size of which is the kernel's.
    """
    point = Window((1, 1))
    if isinstance(form, CP):
        out, down, across, into = form.cores
        each = (down.mT[:, :, None] * across.mT[:, None, :])[:, None]
        middle = [Stage(kernel=each, window=window, groups=each.shape[0])]
    elif isinstance(form, Tucker):
        core, out, down, across, into = form.cores
        middle = [Stage(kernel=torch.einsum("oabi,ha,wb->oihw", core, down, across), window=window)]
    else:
        assert isinstance(form, TensorTrain)
        out, down, across, into = form.cores[0][0], form.cores[1], form.cores[2], form.cores[3][..., 0].mT
        (height, width), stride, padding, dilation = window
        along = Window((1, width), (1, stride[1]), (0, padding[1]), (1, dilation[1]))
        downward = Window((height, 1), (stride[0], 1), (padding[0], 0), (dilation[0], 1))
        middle = [
            Stage(kernel=across.transpose(1, 2)[:, :, None, :], window=along),
            Stage(kernel=down.transpose(1, 2)[..., None], window=downward),
        ]
    first = Stage(kernel=into.mT[..., None, None], window=point)
    last = Stage(kernel=out[..., None, None], window=point)
    return [first, *middle, last]


def run(row: list[Stage], input: Tensor, bias: Tensor | None) -> Tensor:
    """Run the convolutions one after the other; the bias comes with the last."""
    *before, last = row
    for stage in before:
        input = convolved(input, stage.kernel, stage.window, groups=stage.groups)
    return convolved(input, last.kernel, last.window, bias=bias, groups=last.groups)


def work(row: list[Stage]) -> Work:
    """What one position of the last output takes; earlier stages have more positions where later ones skip some."""
    multiplications = moved = 0
    positions = 1
    for stage in reversed(row):
        outputs, inputs = stage.kernel.shape[0], stage.kernel.shape[1] * stage.groups
        multiplications += positions * stage.kernel.numel()
        moved += positions * (outputs + stage.skipped * inputs)
        positions *= stage.skipped
    return Work(multiplications, moved=moved)
