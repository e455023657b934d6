"""MXFP4, the 4-bit format of GPT-OSS: 32 numbers of four bits share one power of two."""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.sites.checkpoints.region import Index, bounds, dropped_axes, without_axes
from rankwise.sites.checkpoints.stored import StoredTensor

# The 16 values of E2M1: a sign, two bits of exponent, one of mantissa.
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
EXPONENT_BIAS = 127


def unpacked_mxfp4(blocks: StoredTensor, scales: StoredTensor) -> StoredTensor | str:
    """`value[nibble] * 2^(scale - 127)` in bfloat16, which holds these numbers exactly; as input x output.

    GPT-OSS stores `blocks [..., output, groups, 16]`, two numbers a byte, the low half first, and
    `scales [..., output, groups]`; its module holds `[..., input, output]` with input = 32 groups,
    and so does the result.

    **Returns:** the dequantized tensor, or the reason why the two do not fit together.
    """
    if len(blocks.shape) < 3 or blocks.shape[-1] != 16 or scales.shape != blocks.shape[:-1]:
        return f"MXFP4 blocks of shape {list(blocks.shape)} do not fit scales of shape {list(scales.shape)}"
    if scales.dtype not in (torch.uint8, torch.float8_e8m0fnu):
        return f"MXFP4 scales of dtype {scales.dtype} are not exponents of one byte"
    *batch, outputs, groups, _ = blocks.shape
    shape = (*batch, groups * 32, outputs)

    def read(index: Index | None) -> Tensor:
        *outer, inputs, columns = bounds(index, shape)
        # Steps are taken at the end: the groups of 32 must be whole until then.
        begin, end = inputs[0] // 32, -(-inputs[1] // 32)
        stored = (*(slice(*range_) for range_ in (*outer, columns)), slice(begin, max(begin, end)))
        codes = blocks.read(stored)
        exponents = scales.read(stored).view(torch.uint8).to(torch.int32) - EXPONENT_BIAS
        table = torch.tensor(VALUES, dtype=torch.bfloat16)
        numbers = torch.stack((table[(codes & 15).int()], table[(codes >> 4).int()]), dim=-1).flatten(-2)
        numbers = torch.ldexp(numbers.float(), exponents.unsqueeze(-1)).to(torch.bfloat16).flatten(-2).mT
        inside = slice(inputs[0] - 32 * begin, inputs[1] - 32 * begin, inputs[2])
        return without_axes(numbers[..., inside, :].contiguous(), dropped_axes(index))

    return StoredTensor(
        shape,
        dtype=torch.bfloat16,
        file=blocks.file,
        bytes=blocks.bytes + scales.bytes,
        read=read,
        dequantized="MXFP4",
    )
