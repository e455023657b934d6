"""What a trained ResNet-20 keeps of its accuracy when its kernels are cut, without training it again.

    python -m benchmarks.truncation SHARED_DATA                        where resnet-cifar10/ and cifar10/ lie

Three ways to read a kernel as a matrix, at equal budgets: along its two directions, across its channels, and the plain
reshape to `(c_out k) x (c_in k)` of the code that was released with the paper, which scrambles a kernel that has
structure.
"""

from __future__ import annotations

import argparse
import copy
import io
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import rankwise as rw
from rankwise.errors import require
from rankwise.layers.initialization import spectral_factors
from tests.layers.nets import CifarResNet

BUDGETS = (0.8, 0.6, 0.5, 0.4, 0.3, 0.2)
MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def images(folder: Path, count: int) -> tuple[Tensor, Tensor]:
    """The first test images, normalized as the net was trained."""
    parquet, pictures = require("pyarrow.parquet", extra="data"), require("PIL.Image", extra="data")
    rows = parquet.read_table(next(folder.glob("cifar10/test*.parquet"))).slice(0, count).to_pylist()
    pixels = [
        torch.frombuffer(bytearray(pictures.open(io.BytesIO(row["img"]["bytes"])).tobytes()), dtype=torch.uint8)
        for row in rows
    ]
    stack = torch.stack(pixels).reshape(-1, 32, 32, 3).permute(0, 3, 1, 2) / 255
    normalized = (stack - torch.tensor(MEAN)[:, None, None]) / torch.tensor(SPREAD)[:, None, None]
    return normalized, torch.tensor([row["label"] for row in rows])


def trained(folder: Path) -> nn.Module:
    stored = torch.load(folder / "resnet-cifar10/resnet20-12fca82f.th", weights_only=True, map_location="cpu")
    net = CifarResNet(20)
    net.load_state_dict({name.removeprefix("module."): each for name, each in stored["state_dict"].items()})
    return net.eval()


@torch.no_grad()
def accuracy(net: nn.Module, given: Tensor, labels: Tensor) -> float:
    found = torch.cat([net(batch).argmax(1) for batch in given.split(250)])
    return (found == labels).float().mean().item()


@torch.no_grad()
def scrambled(net: nn.Module, plan: rw.Plan) -> nn.Module:
    """The net with kernels cut to the ranks of a plan, read as matrices without the transposition."""
    cut = copy.deepcopy(net)
    for layer in plan.layers:
        weight = cut.get_submodule(layer.names[0]).weight
        left, right = spectral_factors(weight.reshape(layer.shape), layer.rank)
        weight.copy_((left @ right).reshape(weight.shape))
    return cut


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--images", type=int, default=2000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    net = trained(given.data)
    batch, labels = images(given.data, given.images)
    console = Console(width=90)
    console.print(f"ResNet-20, the first {given.images:,} test images of CIFAR-10, torch {torch.__version__}")
    table = Table("budget", "along the directions", "across channels", "plain reshape")
    table.add_row("dense", *[f"{100 * accuracy(net, batch, labels):.1f}"] * 3)
    for budget in BUDGETS:
        spatial = rw.factorization_plan(net, budget=budget)
        nets = (spatial.apply(net), rw.factorize(net, budget=budget, form="channel"), scrambled(net, spatial))
        table.add_row(f"{budget:g}", *(f"{100 * accuracy(each.eval(), batch, labels):.1f}" for each in nets))
    console.print(table)


if __name__ == "__main__":
    main()
