"""How fast the spectra of 288 attention products of GPT-2-small shape are, and how exact, each way in one run.

    python benchmarks/products.py

Times are the best of several rounds, in which all contenders take turns; processor time is of all threads together, and
says more than the clock where the machine has other work. Errors are against float64 SVDs of the
matrices multiplied out, as a share of the largest singular value, the worst over a sample; the naive way is timed on
that sample and extrapolated.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformer_lens.FactoredMatrix import FactoredMatrix

from rankwise.product.bucket import spectra
from rankwise.product.product import Product

REFERENCE = "FactoredMatrix.svd(), two SVDs"


@dataclass(frozen=True)
class Contender:
    """One way to the singular values of the whole stack, or of its sample."""

    name: str
    values: Callable[[], Tensor]
    rounds: int
    share: float = 1.0


def contenders(left: Tensor, right: Tensor, sample: int, rounds: int) -> list[Contender]:
    """Every way, on the same factors `[count, m, r]` and `[count, r, n]`."""
    product = Product(left, right)
    layers = [Product(one, two) for one, two in zip(left.split(12), right.split(12), strict=True)]
    few = Product(left[:sample], right[:sample])
    return [
        Contender("Rankwise, float32 Grams", lambda: product.spectrum("gram32").values, 4 * rounds),
        Contender("Rankwise, float64 Grams", lambda: product.spectrum("gram64").values, 4 * rounds),
        Contender("Rankwise, auto", lambda: product.spectrum().values, 4 * rounds),
        Contender(
            f"Rankwise, auto, {len(layers)} products of 12",
            lambda: torch.cat([spectrum.values for spectrum in spectra(layers)]),
            4 * rounds,
        ),
        Contender("Rankwise, QR in float64", lambda: product.spectrum("qr").values, rounds),
        Contender("plain torch, QR in float32", lambda: _by_qr(left, right), rounds),
        Contender(REFERENCE, lambda: FactoredMatrix(left, right).svd()[1], rounds),
        Contender(
            f"naive: multiply, svdvals ({sample} of {len(left)}, extrapolated)",
            lambda: torch.linalg.svdvals(few.dense()),
            1,
            len(left) / sample,
        ),
    ]


def _by_qr(left: Tensor, right: Tensor) -> Tensor:
    one, two = torch.linalg.qr(left, mode="r").R, torch.linalg.qr(right.mT, mode="r").R
    return torch.linalg.svdvals(one @ two.mT)


@dataclass(frozen=True)
class Result:
    """The best times of a contender for the whole stack, in seconds, and the values it found."""

    clock: float
    processor: float
    values: Tensor


def measure(entries: list[Contender]) -> dict[str, Result]:
    """Every contender by turns, and the least of its times."""
    best: dict[str, Result] = {}
    for turn in range(max(entry.rounds for entry in entries)):
        for entry in entries:
            if turn >= entry.rounds:
                continue
            start, spent = time.perf_counter(), time.process_time()
            values = entry.values()
            clock, processor = time.perf_counter() - start, time.process_time() - spent
            so_far = best.get(entry.name, Result(math.inf, math.inf, values))
            best[entry.name] = Result(
                min(so_far.clock, clock * entry.share), min(so_far.processor, processor * entry.share), values
            )
    return best


def show(results: dict[str, Result], truth: Tensor, console: Console) -> None:
    """One line for each contender: its times, how many times less than those of the two-SVD way, and its error."""
    table = Table("way", "time", "than two SVDs", "processor time", "than two SVDs", "error / largest")
    for column in table.columns[1:]:
        column.justify = "right"
    reference = results[REFERENCE]
    for name, result in results.items():
        found = result.values[: len(truth), : truth.shape[-1]].double()
        error = float(((found - truth).abs() / truth[:, :1]).max())
        table.add_row(
            name,
            f"{1e3 * result.clock:,.1f} ms",
            f"{reference.clock / result.clock:.1f} x",
            f"{1e3 * result.processor:,.1f} ms",
            f"{reference.processor / result.processor:.1f} x",
            f"{error:.1e}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=288, help="how many products, a multiple of 12")
    parser.add_argument("--width", type=int, default=768, help="rows and columns of each product")
    parser.add_argument("--rank", type=int, default=64, help="the inner width")
    parser.add_argument("--sample", type=int, default=8, help="how many the naive way and the errors are measured on")
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of the slower ways; the faster take four times it"
    )
    given = parser.parse_args()
    torch.manual_seed(0)
    left, right = torch.randn(given.count, given.width, given.rank), torch.randn(given.count, given.rank, given.width)
    dense = left[: given.sample].double() @ right[: given.sample].double()
    truth = torch.linalg.svdvals(dense)[:, : min(given.width, given.rank)]
    console = Console(width=max(120, Console().width))
    console.print(
        f"{given.count} products of {given.width} x {given.rank} in float32, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, {platform.processor() or platform.machine()}"
    )
    show(measure(contenders(left, right, given.sample, given.rounds)), truth, console)


if __name__ == "__main__":
    main()
