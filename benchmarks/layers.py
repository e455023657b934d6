"""Factorized layers against dense ones, forward and backward: where they break even, and whether "auto" picks well.

    python benchmarks/layers.py                       on the CPU, one thread
    python benchmarks/layers.py --device cuda --dtype bfloat16

Times are the best of several rounds in which all contenders take turns, and are printed as shares of the dense layer's.
The rank is given as a share of the largest one. "auto" is what a layer does unless told otherwise; where it is not the
faster of the two ways, the table says by how much.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from rankwise.layers.base import FactorizedLayer
from rankwise.layers.conv2d import FactorizedConv2d
from rankwise.layers.linear import FactorizedLinear

SHARES = (0.03, 0.06, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 3.0)
# Two ways this close to one another are as fast: repeated runs differ by as much.
TIE = 1.1


@dataclass(frozen=True)
class Case:
    """A dense layer, its factorized form at any rank, and the input of both."""

    name: str
    dense: nn.Module
    factorized: Callable[[int], FactorizedLayer]
    limit: int
    input: Tensor


@dataclass(frozen=True)
class Row:
    """Times at one rank, as shares of the dense layer's."""

    rank: int
    share: float
    two_step: float
    one_step: float
    picked: str

    @property
    def auto(self) -> float:
        return self.two_step if self.picked == "two-step" else self.one_step

    @property
    def loss(self) -> float:
        """How much slower the picked way is than the other, at least 1."""
        return self.auto / min(self.two_step, self.one_step)


def cases(device: str, dtype: torch.dtype, batch: int) -> Iterator[Case]:
    """Linear 1024 for few and many tokens; 3x3 convolutions as in ResNets for small images, with and without stride."""
    options = {"device": device, "dtype": dtype}
    for tokens in (32, 512, 4096):
        yield Case(
            f"Linear 1024 -> 1024, {tokens} tokens",
            nn.Linear(1024, 1024, **options),
            lambda rank: FactorizedLinear(
                1024, 1024, rank=rank, overcomplete=rank > 1024, init=nn.init.normal_, **options
            ),
            1024,
            torch.randn(tokens, 1024, **options),
        )
    for channels, pixels in ((64, 32), (128, 16), (256, 8)):
        for stride in (1, 2):
            inputs = channels // stride
            settings = {"padding": 1, "stride": stride, "bias": False, **options}
            yield Case(
                f"Conv 3x3 {inputs} -> {channels}, stride {stride}, {batch} x {pixels} x {pixels}",
                nn.Conv2d(inputs, channels, 3, **settings),
                lambda rank, inputs=inputs, channels=channels, settings=settings: FactorizedConv2d(
                    inputs, channels, 3, rank=rank, overcomplete=rank > 3 * inputs, init=nn.init.normal_, **settings
                ),
                3 * inputs,
                torch.randn(batch, inputs, pixels * stride, pixels * stride, **options),
            )


def seconds(modules: list[nn.Module], given: Tensor, rounds: int) -> list[float]:
    """The best time of a forward and backward pass through each module, all taking turns."""
    given = given.requires_grad_()
    # On one thread of the CPU what others do on the machine does not count.
    clock = time.process_time if given.device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    towards = torch.randn_like(modules[0](given))
    best = [float("inf")] * len(modules)
    for turn in range(rounds + 2):
        for place, module in enumerate(modules):
            _wait(given)
            start = clock()
            torch.autograd.grad(module(given), [given, *module.parameters()], towards)
            _wait(given)
            if turn > 1:  # the first ones choose kernels and allocate
                best[place] = min(best[place], clock() - start)
    return best


def _wait(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()


def rows(case: Case, rounds: int) -> Iterator[Row]:
    for share in SHARES:
        rank = max(1, round(share * case.limit))
        two, one = case.factorized(rank), case.factorized(rank)
        picked = two.execution_at(case.input)
        two.execution, one.execution = "two-step", "one-step"
        dense, in_two, in_one = seconds([case.dense, two, one], case.input, rounds)
        yield Row(rank, share, in_two / dense, in_one / dense, picked)


def break_even(found: list[Row]) -> str:
    """The share of the largest rank up to which the layer is faster than the dense one, by linear interpolation."""
    if found[0].auto >= 1:
        return "slower than dense at every rank"
    for one, two in pairwise(found):
        if two.auto >= 1:
            share = one.share + (two.share - one.share) * (1 - one.auto) / (two.auto - one.auto)
            return f"faster than dense up to rank {share:.2f} of the largest"
    return "faster than dense at every rank"


def show(case: Case, found: list[Row], console: Console) -> None:
    table = Table("rank", "share", "two-step", "one-step", "auto", "", title=f"{case.name}: {break_even(found)}")
    for column in table.columns[:-1]:
        column.justify = "right"
    for row in found:
        remark = "" if row.loss < TIE else f"slower than the other way by {row.loss:.2f}"
        times = (f"{row.two_step:.2f}", f"{row.one_step:.2f}", f"{row.auto:.2f}")
        table.add_row(str(row.rank), f"{row.share:.2f}", *times, remark)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--batch", type=int, default=32, help="images of a convolution")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    console = Console(width=110)
    console.print(
        f"forward and backward in {given.dtype} on {_machine(given.device)}, torch {torch.__version__}; "
        "times as shares of the dense layer's"
    )
    everything: list[Row] = []
    for case in cases(given.device, getattr(torch, given.dtype), given.batch):
        found = list(rows(case, given.rounds))
        show(case, found, console)
        everything += found
    good = sum(row.loss < TIE for row in everything)
    worst = max(row.loss for row in everything)
    console.print(
        f"auto is the faster way, or within {TIE - 1:.0%} of it, at {good} of {len(everything)} points; "
        f"at worst it takes {worst:.2f} times as long"
    )


def _machine(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    return f"{torch.get_num_threads()} thread(s) of {platform.processor() or platform.machine()}"


if __name__ == "__main__":
    main()
