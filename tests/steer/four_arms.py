"""Train on real images in four arms, a regular or a spectral start by decay of the factors or of the product.

A ResNet-20 with nine tenths of its weights gone, and a small vision transformer, for some hundred steps of SGD with
momentum. What is measured are their products; nothing is claimed of accuracies.

    .venv/bin/python -m tests.steer.four_arms shared/data
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import rankwise as rw
from rankwise.layers.ranks import PAPER_RULE
from tests.layers.nets import CifarResNet
from tests.steer.images import Images, cifar

Start = Literal["regular", "spectral"]
Charge = Literal["factors", "product"]

STARTS: tuple[Start, ...] = ("regular", "spectral")
CHARGES: tuple[Charge, ...] = ("factors", "product")
MOMENTUM = 0.9
IMAGES = 2048


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one kind of net is made and trained.

    Arguments:
        make: the net, with factors that start in the given way.
        rate, decay, steps, batch: of SGD; decay is the coefficient of either kind.
        measured: how often the products are measured, in steps.
    """

    make: Callable[[Start], nn.Module]
    rate: float
    decay: float
    steps: int
    batch: int
    measured: int = 25

    @property
    def shrinkage(self) -> Tensor:
        """By what decay of the factors multiplies their imbalance, at every measurement: `exp(-2 lambda t)`.

        Momentum makes the time of one step `rate / (1 - momentum)`.
        """
        steps = torch.arange(0, self.steps + 1, self.measured, dtype=torch.float64)
        return torch.exp(-2 * self.decay * self.rate / (1 - MOMENTUM) * steps)


@dataclass(frozen=True, kw_only=True)
class Course:
    """What the products of one net did, `[measurements, products]`.

    Arguments:
        half_sum: half the squared norms of the factors, the bound that decay of the factors acts on.
        gap: by how much it exceeds the nuclear norm.
        nuclear, frobenius: norms of the product.
        imbalance: `|A^T A - B B^T|_F`.
        loss: the loss on each batch.
    """

    half_sum: Tensor
    gap: Tensor
    nuclear: Tensor
    frobenius: Tensor
    imbalance: Tensor
    loss: Tensor

    @property
    def slack(self) -> Tensor:
        """The share of the bound that is gap, over all products, at every measurement."""
        return self.gap.sum(-1) / self.half_sum.sum(-1)

    @property
    def kept(self) -> Tensor:
        """Each product's squared Frobenius norm as a share of what it began with."""
        return (self.frobenius / self.frobenius[0]).square()


class Block(nn.Module):
    """Attention and a feed-forward net, each after a normalization."""

    def __init__(self, width: int, heads: int, start: Start) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = rw.FactorizedAttention(
            width,
            heads,
            head_size=width // heads // 2,
            bias=False,
            init="balanced" if start == "spectral" else "drawn",
        )
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class VisionTransformer(nn.Module):
    """Patches of 4x4, learned positions, the mean of all tokens to the classes."""

    def __init__(self, width: int, heads: int, layers: int, start: Start) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.positions = nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.Sequential(*(Block(width, heads, start) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).mT + self.positions
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def resnet(start: Start) -> nn.Module:
    """ResNet-20 at a rank scale of 0.111; factors drawn by Kaiming each, or the best approximation of such a kernel."""
    kaiming = nn.init.kaiming_normal_
    init = kaiming if start == "regular" else rw.Spectral(draw=kaiming)
    return rw.factorize(CifarResNet(20), rank=0.111, rule=PAPER_RULE, init=init)


def transformer(start: Start) -> nn.Module:
    """Three layers of width 48 with heads of half the usual size, and feed-forward layers at a third of full rank."""
    init = nn.init.kaiming_normal_ if start == "regular" else "spectral"
    return rw.factorize(VisionTransformer(48, 4, 3, start), rank=1 / 3, select="*.mlp.*", init=init)


RECIPES = {
    "ResNet-20": Recipe(make=resnet, rate=0.05, decay=1e-2, steps=300, batch=32),
    "transformer": Recipe(make=transformer, rate=0.02, decay=2e-2, steps=400, batch=32),
}


def train(recipe: Recipe, images: Images, start: Start, charge: Charge) -> Course:
    """One arm: the same draw of images for all, the same coefficient of decay for either kind."""
    torch.manual_seed(0)
    net = recipe.make(start).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=recipe.rate, momentum=MOMENTUM, weight_decay=recipe.decay)
    if charge == "product":
        rw.FrobeniusDecay(net).attach(optimizer)
    products = rw.find(net).select(where=lambda site: len(site.factors) > 1)
    generator = torch.Generator().manual_seed(1)
    measured, losses = [measure(products, net)], []
    for step in range(1, recipe.steps + 1):
        pixels, labels = images.batch(recipe.batch, generator)
        loss = F.cross_entropy(net(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step % recipe.measured == 0:
            measured.append(measure(products, net))
    half_sum, gap, nuclear, frobenius, imbalance = torch.stack(measured, 1)
    return Course(
        half_sum=half_sum,
        gap=gap,
        nuclear=nuclear,
        frobenius=frobenius,
        imbalance=imbalance,
        loss=torch.stack(losses),
    )


def measure(sites: rw.Sites, net: nn.Module) -> Tensor:
    """Half-sum, gap, nuclear norm, Frobenius norm and imbalance of every product, heads one by one."""
    rows = []
    for site in sites:
        product = site.product(net).detach()
        found = rw.balance(product)
        frobenius = rw.frobenius_penalty(product).mul(2).sqrt().double()
        rows.append(torch.stack([found.half_sum, found.gap, found.nuclear, frobenius, found.imbalance_norm]))
    return torch.cat([row.reshape(5, -1) for row in rows], 1)


def arms(name: str, images: Images) -> dict[tuple[Start, Charge], Course]:
    return {(start, charge): train(RECIPES[name], images, start, charge) for start in STARTS for charge in CHARGES}


def table(name: str, courses: dict[tuple[Start, Charge], Course]) -> Table:
    """Means over the products at the first and at the last step, and what decay of the factors should have left."""
    recipe = RECIPES[name]
    found = Table(
        title=f"{name}: {recipe.steps} steps, {courses['regular', 'factors'].gap.shape[1]} products, "
        f"exp(-2 lambda t) = {recipe.shrinkage[-1]:.3f}",
        box=box.MARKDOWN,
    )
    early = f"norm^2 left after {recipe.measured}"
    for column in ("start", "decay of", "bound", "gap / bound", "imbalance", "of each, kept", "norm", early, "loss"):
        found.add_column(column, justify="left" if column in ("start", "decay of") else "right")
    for (start, charge), course in courses.items():
        means = (each.mean(-1) for each in (course.half_sum, course.imbalance, course.frobenius))
        half_sum, imbalance, frobenius = (f"{each[0]:.2f} to {each[-1]:.2f}" for each in means)
        slack = f"{course.slack[0]:.1%} to {course.slack[-1]:.1%}"
        ratio = course.imbalance[-1] / course.imbalance[0]
        kept = f"{ratio.min():.3f} to {ratio.max():.3f}" if start == "regular" else ""
        loss = f"{course.loss[:25].mean():.2f} to {course.loss[-25:].mean():.2f}"
        found.add_row(start, charge, half_sum, slack, imbalance, kept, frobenius, f"{course.kept[1].mean():.1%}", loss)
    return found


def main(folder: str) -> None:
    images = cifar(Path(folder), IMAGES)
    for name in RECIPES:
        Console(width=150).print(table(name, arms(name, images)))


if __name__ == "__main__":
    main(*sys.argv[1:])
