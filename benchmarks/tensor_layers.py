"""Tensorized convolutions against dense ones, forward and backward, and whether "auto" picks the faster way.

    python -m benchmarks.tensor_layers                       on the CPU, one thread
    python -m benchmarks.tensor_layers --device cuda --dtype bfloat16

Times are the best of several rounds in which all contenders take turns, and are printed as shares of the dense layer's:
the small convolutions in turn, and the kernel rebuilt from its cores and run at once.
"""

from __future__ import annotations

import argparse
import platform
from typing import get_args

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.layers import TIE, seconds
from rankwise.layers.base import Execution
from rankwise.layers.tensor_ranks import Form
from rankwise.layers.tensorized_conv2d import TensorizedConv2d

SCALES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)


def table(channels: int, pixels: int, *, batch: int, rounds: int, device: str, dtype: torch.dtype) -> Table:
    """One dense convolution and its forms at all scales."""
    options = {"padding": 1, "bias": False, "device": device, "dtype": dtype}
    dense = nn.Conv2d(channels, channels, 3, **options)
    images = torch.randn(batch, channels, pixels, pixels, device=device, dtype=dtype)
    result = Table(
        title=f"Conv 3x3 {channels} -> {channels}, {batch} x {pixels} x {pixels}, times over the dense layer's"
    )
    for column in ("form", "scale", "ranks", "weights", "in turn", "at once", "auto"):
        result.add_column(column)
    for form in get_args(Form):
        for scale in SCALES:

            def made(execution: Execution, form: Form = form, scale: float = scale) -> TensorizedConv2d:
                return TensorizedConv2d(
                    channels, channels, 3, form=form, scale=scale, init=nn.init.normal_, execution=execution, **options
                )

            whole, in_turn, at_once = seconds([dense, made("two-step"), made("one-step")], images, rounds)
            layer = made("auto")
            picked = layer.execution_at(images)
            ways = {"two-step": in_turn / whole, "one-step": at_once / whole}
            loss = ways[picked] / min(ways.values())
            said = picked if loss < TIE else f"{picked}, {loss:.2f} times the other"
            share = layer.tensor.parameters / dense.weight.numel()
            numbers = (f"{share:.3f}", f"{ways['two-step']:.2f}", f"{ways['one-step']:.2f}", said)
            result.add_row(form, f"{scale:g}", "x".join(map(str, layer.ranks)), *numbers)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    console.print(
        f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {given.device}, {given.dtype}"
    )
    for channels, pixels in ((64, 32), (128, 16), (256, 8)):
        dtype = getattr(torch, given.dtype)
        console.print(table(channels, pixels, batch=given.batch, rounds=given.rounds, device=given.device, dtype=dtype))


if __name__ == "__main__":
    main()
