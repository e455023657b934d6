"""The number formats of a safetensors file: their widths, and the torch dtype that reads them."""

from __future__ import annotations

import torch

TORCH_DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}

# Formats narrower than a byte: their sizes are checked, their values are not read.
SUB_BYTE_BITS: dict[str, int] = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


def bits_of(dtype: str) -> int | None:
    """Width in bits of a safetensors dtype; None when it is unknown.

    >>> bits_of("BF16"), bits_of("F4"), bits_of("Q7")
    (16, 4, None)
    """
    if dtype in TORCH_DTYPES:
        return 8 * TORCH_DTYPES[dtype].itemsize
    return SUB_BYTE_BITS.get(dtype)


def name_of(dtype: torch.dtype) -> str:
    """The dtype as people write it.

    >>> name_of(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")
