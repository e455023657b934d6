"""Quantized weights: FP8 with its scales and MXFP4 become numbers again, other formats are called by their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch

from rankwise.sites.checkpoints.dtypes import name_of
from rankwise.sites.checkpoints.fp8 import scaled_fp8
from rankwise.sites.checkpoints.mxfp4 import unpacked_mxfp4
from rankwise.sites.checkpoints.stored import StoredTensor

FP8 = frozenset({torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz})
FP8_SCALES = ("_scale_inv", "_scale")
BLOCKS, SCALES = "_blocks", "_scales"

# (format, the suffix that betrays it, the suffixes of its other parts); the first that fits a tensor's name is taken.
PACKED_FORMATS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("GPTQ", ".qweight", (".qzeros", ".scales", ".g_idx")),
    ("AWQ", ".qweight", (".qzeros", ".scales")),
    ("bitsandbytes 8-bit", ".SCB", (".weight", ".weight_format")),
    (
        "bitsandbytes 4-bit",
        ".weight.absmax",
        (".weight", ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map"),
    ),
    (
        "compressed-tensors",
        ".weight_packed",
        (".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_global_scale"),
    ),
    ("NVFP4", ".weight_scale_2", (".weight", ".weight_scale")),
    ("HQQ", ".W_q", (".scale", ".zero", ".meta")),
    ("Quanto", ".weight._data", (".weight._scale", ".weight._shift")),
    ("AQLM", ".codes", (".codebooks", ".scales")),
    ("EETQ", ".weight_scales", (".weight",)),
)
QUANT_STATE = ".weight.quant_state."


@dataclass(frozen=True)
class Unquantized:
    """The tensors as numbers, those of other formats with the reason, and what was done."""

    tensors: dict[str, StoredTensor]
    _: KW_ONLY
    unreadable: dict[str, str]
    notes: tuple[str, ...]


def unquantize(tensors: Mapping[str, StoredTensor], config: Mapping[str, Any] | None = None) -> Unquantized:
    """Replace quantized tensors by ones that are dequantized when they are read.

    **Arguments:** the stored tensors, and the checkpoint's configuration, whose `quantization_config` may state the
    block size of FP8 scales.

    **Returns:** tensors without the scales they consumed; formats that are not read, part by part, under `unreadable`.
    """
    unreadable = _packed(tensors)
    rest = {name: tensor for name, tensor in tensors.items() if name not in unreadable}
    scaled, fp8_notes = _with_fp8_scales(rest, unreadable, _block_size(config))
    result, mxfp4_notes = _with_mxfp4(scaled, unreadable)
    return Unquantized(result, unreadable=unreadable, notes=(*fp8_notes, *mxfp4_notes))


def _packed(tensors: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Every part of every tensor in a packed integer format, with the format's name."""
    unreadable: dict[str, str] = {}
    for name in tensors:
        for title, mark, parts in PACKED_FORMATS:
            if not name.endswith(mark) or name in unreadable:
                continue
            stem = name.removesuffix(mark)
            # AWQ has the names of GPTQ but for the order of activations.
            if title == "GPTQ" and stem + ".g_idx" not in tensors:
                continue
            present = [stem + part for part in parts if stem + part in tensors]
            if present:
                unreadable |= dict.fromkeys((name, *present), f"part of {title} quantization, which is not read")
    states = {
        name: "part of bitsandbytes 4-bit quantization, which is not read" for name in tensors if QUANT_STATE in name
    }
    integers = {
        name: "8-bit integer quantization, which is not read"
        for name, tensor in tensors.items()
        if name.endswith(".weight") and tensor.dtype == torch.int8 and name + "_scale" in tensors
    }
    return {**integers, **{name + "_scale": reason for name, reason in integers.items()}, **states, **unreadable}


def _with_fp8_scales(
    tensors: Mapping[str, StoredTensor], unreadable: dict[str, str], block: tuple[int, int] | None
) -> tuple[dict[str, StoredTensor], list[str]]:
    result = dict(tensors)
    formats: Counter[str] = Counter()
    for name, tensor in tensors.items():
        if tensor.dtype not in FP8:
            continue
        scale_name = next((name + suffix for suffix in FP8_SCALES if name + suffix in tensors), None)
        if scale_name is None:
            result[name] = _widened(tensor)
            formats["FP8 tensors without a scale, read as bfloat16, which holds their values exactly"] += 1
            continue
        del result[scale_name]
        scaled = scaled_fp8(tensor, tensors[scale_name], block)
        if isinstance(scaled, str):
            unreadable |= {name: scaled, scale_name: f"the scale of {name}, which is not read"}
            del result[name]
        else:
            result[name] = scaled
            formats[f"tensors dequantized from {scaled.dequantized}"] += 1
    return result, [f"{title}: {count}" for title, count in formats.items()]


def _widened(tensor: StoredTensor) -> StoredTensor:
    """The same values in a type that torch computes with."""
    description = f"{name_of(tensor.dtype)} without a scale"
    return replace(
        tensor,
        dtype=torch.bfloat16,
        read=lambda index: tensor.read(index).to(torch.bfloat16),
        dequantized=description,
    )


def _with_mxfp4(
    tensors: Mapping[str, StoredTensor], unreadable: dict[str, str]
) -> tuple[dict[str, StoredTensor], list[str]]:
    result = dict(tensors)
    count = 0
    for name, blocks in tensors.items():
        stem = name.removesuffix(BLOCKS)
        scales = tensors.get(stem + SCALES)
        if stem == name or scales is None or blocks.dtype != torch.uint8 or stem in tensors:
            continue
        del result[name], result[stem + SCALES]
        unpacked = unpacked_mxfp4(blocks, scales)
        if isinstance(unpacked, str):
            unreadable |= {name: unpacked, stem + SCALES: f"the scales of {name}, which is not read"}
        else:
            result[stem] = unpacked
            count += 1
    return result, [f"tensors dequantized from MXFP4, as input x output: {count}"] if count else []


def _block_size(config: Mapping[str, Any] | None) -> tuple[int, int] | None:
    stated = (config or {}).get("quantization_config")
    block = stated.get("weight_block_size") if isinstance(stated, Mapping) else None
    if isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block):
        return block[0], block[1]
    return None
