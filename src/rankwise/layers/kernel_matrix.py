"""Kernels read as matrices: along their two directions, or across their channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from rankwise.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

KernelShape = tuple[int, int, int, int]
Form = Literal["spatial", "channel"]


def check_form(form: str) -> None:
    if form not in get_args(Form):
        raise UserError(
            f"form must be 'spatial' or 'channel', got {form!r}: for tensor forms see rankwise.TensorizedConv2d"
        )


def kernel_to_matrix(kernel: Float[Tensor, "o i kh kw"], form: Form) -> Float[Tensor, "m n"]:
    """A kernel as the matrix that is factorized.

    "spatial": `(o kh) x (i kw)`. Each direction of the window goes to a side of its own, so that the kernel of two
    convolutions in turn has their number of channels for a rank. A mere reshape would scramble it: the kernel is stored
    as `o i kh kw`, with `i` before `kh`.
    "channel": `o x (i kh kw)`.

    >>> import torch
    >>> separable = torch.outer(torch.tensor([1.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, -1.0]))[None, None]
    >>> torch.linalg.matrix_rank(kernel_to_matrix(separable, "spatial")).item()
    1
    """
    outputs, inputs, height, width = kernel.shape
    if form == "channel":
        return kernel.reshape(outputs, inputs * height * width)
    return kernel.transpose(1, 2).reshape(outputs * height, inputs * width)


def matrix_to_kernel(matrix: Float[Tensor, "m n"], shape: KernelShape, form: Form) -> Float[Tensor, "o i kh kw"]:
    """The kernel of a given shape that `kernel_to_matrix` reads as this matrix."""
    outputs, inputs, height, width = shape
    if form == "channel":
        return matrix.reshape(shape)
    return matrix.reshape(outputs, height, inputs, width).transpose(1, 2)


def matrix_shape(shape: KernelShape, form: Form) -> tuple[int, int]:
    """The shape of the matrix of a kernel.

    >>> matrix_shape((32, 16, 3, 3), "spatial"), matrix_shape((32, 16, 3, 3), "channel")
    ((96, 48), (32, 144))
    """
    outputs, inputs, height, width = shape
    return (outputs, inputs * height * width) if form == "channel" else (outputs * height, inputs * width)
