"""The nets of the paper's tables, in the width and order of layers that its code has them in."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut: a 1x1 convolution, or (option A) strided slicing padded with zeros."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, projected: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.added = stride, outputs - inputs
        self.downsample: nn.Module | None = None
        if projected and (stride != 1 or inputs != outputs):
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, input: Tensor) -> Tensor:
        hidden = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(input)))))
        if self.downsample is not None:
            return F.relu(hidden + self.downsample(input))
        shortcut = input[:, :, :: self.stride, :: self.stride]
        half = self.added // 2
        return F.relu(hidden + F.pad(shortcut, (0, 0, 0, 0, half, self.added - half)))


class CifarResNet(nn.Module):
    """A ResNet of `6 n + 2` layers for 32x32 images; names as in the trained weights that the tests read."""

    def __init__(
        self, depth: int, *, widths: tuple[int, ...] = (16, 32, 64), classes: int = 10, projected: bool = False
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        sizes = [widths[0], *widths]
        for position, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
            blocks = [BasicBlock(inputs, outputs, 1 if position == 1 else 2, projected=projected)]
            blocks += [BasicBlock(outputs, outputs, 1, projected=projected) for _ in range((depth - 2) // 6 - 1)]
            self.add_module(f"layer{position}", nn.Sequential(*blocks))
        self.linear = nn.Linear(widths[-1], classes)

    def forward(self, input: Tensor) -> Tensor:
        hidden = F.relu(self.bn1(self.conv1(input)))
        for position in (1, 2, 3):
            hidden = self.get_submodule(f"layer{position}")(hidden)
        return self.linear(hidden.mean((-2, -1)))


def vgg19(classes: int) -> nn.Module:
    """VGG19 with batch normalization and one linear layer; convolutions without bias."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs in (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512):
        if outputs == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(nn.Sequential(*layers), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class WideBlock(nn.Module):
    """Normalization first; a 1x1 convolution for a shortcut where the width changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        hidden = F.relu(self.bn1(input))
        shortcut = input if self.shortcut is None else self.shortcut(hidden)
        return shortcut + self.conv2(F.relu(self.bn2(self.conv1(hidden))))


def wide_resnet(depth: int, width: int, classes: int) -> nn.Module:
    """WRN-depth-width."""
    widths = [16, 16 * width, 32 * width, 64 * width]
    blocks: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    for position, (inputs, outputs) in enumerate(pairwise(widths)):
        for place in range((depth - 4) // 6):
            blocks.append(WideBlock(inputs if place == 0 else outputs, outputs, 2 if place == 0 and position else 1))
    blocks += [nn.BatchNorm2d(widths[-1]), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*blocks, nn.Linear(widths[-1], classes))


def parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def on_meta(make, *arguments, **settings) -> nn.Module:
    """A net without values: shapes are all that counting needs."""
    with torch.device("meta"):
        return make(*arguments, **settings)
