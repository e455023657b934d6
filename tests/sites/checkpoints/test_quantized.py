"""Scaled FP8 and MXFP4 read as the numbers they stand for; every other format is called by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rankwise.sites.checkpoints import Checkpoint, open_checkpoint

E4M3 = torch.float8_e4m3fn


def opened(folder: Path, weights: dict[str, torch.Tensor], config: dict[str, Any] | None = None) -> Checkpoint:
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return open_checkpoint(folder)


def blockwise(weight: torch.Tensor, scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The definition, one element's scale at a time, in float64."""
    spread = scale.double().repeat_interleave(rows, -2).repeat_interleave(columns, -1)
    return weight.double() * spread[..., : weight.shape[-2], : weight.shape[-1]]


@pytest.mark.parametrize("shape", [(256, 384), (300, 200), (130, 7), (3, 260, 140)])
@pytest.mark.parametrize("block", [None, (64, 32)])
def test_block_scales_as_deepseek_keeps_them(
    tmp_path: Path, shape: tuple[int, ...], block: tuple[int, int] | None
) -> None:
    rows, columns = block or (128, 128)
    weight = torch.randn(shape).to(E4M3)
    scale = torch.rand(*shape[:-2], -(-shape[-2] // rows), -(-shape[-1] // columns)) + 0.1
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [rows, columns]}} if block else None
    with opened(tmp_path, {"a.weight": weight, "a.weight_scale_inv": scale}, config) as checkpoint:
        assert list(checkpoint) == ["a.weight"]
        entry = checkpoint.entries["a.weight"]
        assert entry.dtype == "float32"
        assert entry.bytes == weight.numel() + 4 * scale.numel()
        assert entry.dequantized == f"float8_e4m3fn with float32 scales per block of {rows} x {columns}"
        assert any("dequantized from float8_e4m3fn" in note for note in checkpoint.notes)
        wanted = blockwise(weight, scale, rows, columns).float()
        assert torch.equal(checkpoint["a.weight"], wanted)
        index = (*[slice(1, 2)] * (len(shape) - 2), slice(5, -3), slice(2, None, 3))
        assert torch.equal(checkpoint.read("a.weight", index), wanted[index])
        assert torch.equal(checkpoint.read("a.weight", (1,)), wanted[1])
        assert checkpoint.read("a.weight", (slice(0, 0),)).shape == (0, *shape[1:])


@pytest.mark.parametrize(
    ("scale_shape", "layout"),
    [((), "tensor"), ((1,), "tensor"), ((1, 1, 1), "tensor"), ((6,), "row"), ((6, 1), "row")],
)
def test_one_scale_for_a_tensor_or_for_each_row(tmp_path: Path, scale_shape: tuple[int, ...], layout: str) -> None:
    weight, scale = torch.randn(6, 4).to(torch.float8_e5m2), torch.rand(scale_shape) + 0.5
    with opened(tmp_path, {"a.weight": weight, "a.weight_scale": scale}) as checkpoint:
        assert list(checkpoint) == ["a.weight"]
        assert checkpoint.entries["a.weight"].dequantized == f"float8_e5m2 with float32 scales per {layout}"
        spread = scale.double().reshape(-1, 1)
        wanted = (weight.double() * spread).float()
        assert torch.equal(checkpoint["a.weight"], wanted)
        assert torch.equal(checkpoint.read("a.weight", (slice(1, 5, 2), 3)), wanted[1:5:2, 3])


def test_one_scale_for_each_expert(tmp_path: Path) -> None:
    weight, scale = torch.randn(3, 6, 4).to(E4M3), torch.rand(3, 1, 1) + 0.5
    with opened(tmp_path, {"w": weight, "w_scale": scale}) as checkpoint:
        assert torch.equal(checkpoint.read("w", (2,)), (weight[2].double() * scale[2].double()).float())


def test_a_scale_that_does_not_fit_is_told(tmp_path: Path) -> None:
    weights = {"a.weight": torch.ones(256, 256).to(E4M3), "a.weight_scale_inv": torch.ones(3, 2), "b": torch.ones(2)}
    with opened(tmp_path, weights) as checkpoint:
        assert list(checkpoint) == ["b"]
        assert "[3, 2]" in checkpoint.unreadable["a.weight"]
        assert "scale of a.weight" in checkpoint.unreadable["a.weight_scale_inv"]


@pytest.mark.parametrize("dtype", [E4M3, torch.float8_e5m2], ids=str)
def test_fp8_without_a_scale_keeps_its_values_and_it_is_said(tmp_path: Path, dtype: torch.dtype) -> None:
    """All 256 codes of a byte, in a type that torch can compute with."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).reshape(16, 16)
    with opened(tmp_path, {"a.weight": codes}) as checkpoint:
        entry = checkpoint.entries["a.weight"]
        assert (entry.dtype, entry.bytes) == ("bfloat16", 256)
        assert entry.dequantized == f"{str(dtype).removeprefix('torch.')} without a scale"
        assert torch.equal(checkpoint["a.weight"].double().nan_to_num(-7), codes.double().nan_to_num(-7))
        assert torch.equal(checkpoint.read("a.weight", (3, slice(2, 5))).double(), codes[3, 2:5].double())
        assert any("without a scale" in note for note in checkpoint.notes)


FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def test_mxfp4_as_gpt_oss_keeps_it(tmp_path: Path) -> None:
    experts, outputs, groups = 2, 5, 3
    blocks = torch.randint(0, 256, (experts, outputs, groups, 16), dtype=torch.uint8)
    scales = torch.randint(110, 140, (experts, outputs, groups), dtype=torch.uint8)
    weights = {"mlp.experts.down_proj_blocks": blocks, "mlp.experts.down_proj_scales": scales}
    wanted = torch.zeros(experts, groups * 32, outputs, dtype=torch.float64)
    for expert, output, group, byte in torch.cartesian_prod(*map(torch.arange, blocks.shape)).tolist():
        power = 2.0 ** (int(scales[expert, output, group]) - 127)
        code = int(blocks[expert, output, group, byte])
        for half, nibble in enumerate((code % 16, code // 16)):
            value = FP4[nibble % 8] * (-1 if nibble >= 8 else 1)
            wanted[expert, group * 32 + byte * 2 + half, output] = value * power
    with opened(tmp_path, weights) as checkpoint:
        assert list(checkpoint) == ["mlp.experts.down_proj"]
        entry = checkpoint.entries["mlp.experts.down_proj"]
        assert (entry.shape, entry.dtype, entry.dequantized) == ((experts, 96, outputs), "bfloat16", "MXFP4")
        assert torch.equal(checkpoint["mlp.experts.down_proj"].double(), wanted)
        for index in ((1,), (slice(None), slice(40, 70, 3), slice(1, 4)), (0, 33), (0, slice(5, 5))):
            assert torch.equal(checkpoint.read("mlp.experts.down_proj", index).double(), wanted[index])


def integers(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("title", "parts"),
    [
        (
            "GPTQ",
            {".qweight": integers(2, 4), ".qzeros": integers(1, 1), ".scales": torch.ones(1, 4), ".g_idx": integers(8)},
        ),
        ("AWQ", {".qweight": integers(8, 1), ".qzeros": integers(1, 1), ".scales": torch.ones(1, 4)}),
        ("bitsandbytes 8-bit", {".weight": integers(4, 4, dtype=torch.int8), ".SCB": torch.ones(4)}),
        (
            "bitsandbytes 4-bit",
            {
                ".weight": integers(8, 1, dtype=torch.uint8),
                ".weight.absmax": torch.ones(1),
                ".weight.quant_map": torch.ones(16),
                ".weight.quant_state.bitsandbytes__nf4": integers(9, dtype=torch.uint8),
            },
        ),
        (
            "compressed-tensors",
            {".weight_packed": integers(4, 1), ".weight_scale": torch.ones(4), ".weight_shape": integers(2)},
        ),
        (
            "NVFP4",
            {
                ".weight": integers(4, 2, dtype=torch.uint8),
                ".weight_scale": torch.ones(4, 1).to(E4M3),
                ".weight_scale_2": torch.ones(()),
            },
        ),
        ("8-bit integer", {".weight": integers(4, 4, dtype=torch.int8), ".weight_scale": torch.ones(4)}),
        ("HQQ", {".W_q": integers(4, 4, dtype=torch.uint8), ".scale": torch.ones(4), ".zero": torch.ones(4)}),
    ],
)
def test_other_formats_are_named_part_by_part(tmp_path: Path, title: str, parts: dict[str, torch.Tensor]) -> None:
    weights = {f"layers.0.q_proj{part}": tensor for part, tensor in parts.items()}
    with opened(tmp_path, {**weights, "norm.weight": torch.ones(4)}) as checkpoint:
        assert list(checkpoint) == ["norm.weight"]
        assert set(checkpoint.unreadable) == set(weights)
        assert all(title in reason for reason in checkpoint.unreadable.values())


def test_names_that_only_look_quantized_are_read(tmp_path: Path) -> None:
    weights = {
        "vision.scales": torch.ones(2),
        "a.weight_scale": torch.ones(2),
        "x_blocks": torch.ones(2),
        "y.codes": torch.ones(2),
    }
    with opened(tmp_path, weights) as checkpoint:
        assert set(checkpoint) == set(weights)
        assert not checkpoint.unreadable
