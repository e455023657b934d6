"""`rankwise bench`: the speed and the errors of spectra on this machine, with the library alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rankwise.product.product import Product
    from rankwise.product.spectrum import Method

METHODS: tuple[Method, ...] = ("auto", "gram32", "gram64", "qr")
Result = TypeVar("Result")

SAMPLE = 4
"""How many products are multiplied out: the naive way is timed on them one by one, and errors are measured on them."""


@dataclass(frozen=True)
class Timing:
    """One way to compute the spectra: its time for all products, and its errors as shares of the largest value."""

    method: str
    seconds: float
    extrapolated: bool
    """Timed on single products and scaled up."""
    error: float
    """The largest difference from the float64 reference, over the sample."""
    bound: float | None
    """The largest error that the method itself reports, over all products."""


def bench(
    *,
    count: int = 288,
    rows: int = 768,
    inner: int = 64,
    repeats: int = 5,
    device: str = "cpu",
    json: bool = False,
) -> None:
    """Measure the speed and the errors of spectra on this machine.

    The default is every query-key and value-output product of a GPT-2-small: 288 of 768 x 64 x 768, in float32, with
    random factors. The naive way multiplies each product out and decomposes it; it is timed on a few and scaled up.

    Parameters
    ----------
    count
        How many products.
    rows
        The width of the model: both sides of every product.
    inner
        The width of a head: the inner side of every product.
    repeats
        How often each way is run; the fastest run counts.
    device
        Where torch computes: cpu, cuda, cuda:1, ...
    json
        Print one JSON object instead of a table.
    """
    from rankwise.errors import UserError

    for name, value in {"count": count, "rows": rows, "inner": inner, "repeats": repeats}.items():
        if value < 1:
            raise UserError(f"--{name} is {value}: give a whole number of at least 1")
    timings = measure(random_products(count, rows, inner, device), repeats=repeats)
    if json:
        print(as_json(timings))
    else:
        _show(timings, title=f"{count} products of {rows} x {inner} x {rows}, float32")


def random_products(count: int, rows: int, inner: int, device: str) -> Product:
    """A stack of products with random normal factors, the same at every call."""
    import torch

    from rankwise.errors import UserError
    from rankwise.product.product import Product

    try:
        place = torch.device(device)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {device!r} is not here ({reason}): rankwise doctor lists those that are") from None
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(count, rows, inner, generator=generator)
    right = torch.randn(count, inner, rows, generator=generator)
    return Product(left.to(place), right.to(place))


def measure(products: Product, *, repeats: int) -> list[Timing]:
    """Time every method on all products and the naive way on a sample; compare each with the float64 reference."""
    import torch

    sample = products[:SAMPLE]
    reference = torch.linalg.svdvals(sample.to(torch.float64).dense())[..., : products.max_rank]
    largest = reference[..., :1]

    def error(values: Tensor) -> float:
        return float(((values[: len(reference), : products.max_rank] - reference).abs() / largest).max())

    alone = [_fastest(lambda one=one: torch.linalg.svdvals(one.dense()), products.device, runs=1) for one in sample]
    seconds = products.count * min(each for _, each in alone)
    naive = torch.stack([values for values, _ in alone])
    timings = [Timing("naive", seconds, extrapolated=products.count > 1, error=error(naive), bound=None)]
    for method in METHODS:
        # One run more than asked for: the first one also pays for loading kernels.
        spectrum, seconds = _fastest(lambda method=method: products.spectrum(method), products.device, runs=repeats + 1)
        bound = float((spectrum.error / spectrum.values[..., :1]).max())
        timings.append(Timing(method, seconds, extrapolated=False, error=error(spectrum.values), bound=bound))
    return timings


def as_json(timings: list[Timing]) -> str:
    """The timings as one JSON object, with the machine that they were measured on."""
    return json.dumps({"machine": _machine(), "timings": [asdict(timing) for timing in timings]}, indent=2)


def _fastest(work: Callable[[], Result], device: torch.device, *, runs: int) -> tuple[Result, float]:
    def timed() -> tuple[Result, float]:
        _wait(device)
        start = time.perf_counter()
        result = work()
        _wait(device)
        return result, time.perf_counter() - start

    return min((timed() for _ in range(runs)), key=lambda run: run[1])


def _wait(device: torch.device) -> None:
    import torch

    if device.type != "cpu":
        torch.accelerator.synchronize()


def _machine() -> str:
    import platform

    import torch

    return f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def _show(timings: list[Timing], *, title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    naive = timings[0].seconds
    table = Table(
        "method", "time", "than naive", "error", "error bound", box=None, pad_edge=False, padding=(0, 3, 0, 0)
    )
    for timing in timings:
        about = "about " if timing.extrapolated else ""
        bound = "-" if timing.bound is None else f"{timing.bound:.0e}"
        speed = f"{naive / timing.seconds:.0f} x faster" if timing.method != "naive" else ""
        table.add_row(timing.method, f"{about}{_duration(timing.seconds)}", speed, f"{timing.error:.0e}", bound)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{title}; {_machine()}", markup=False)
    console.print(table)
    console.print(f"Errors are shares of the largest value: the error on {SAMPLE} products, the bound on all of them.")


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
