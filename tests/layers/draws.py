"""Random weights with a spectrum that is known, and small helpers that several tests of layers share."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def matrix(rows: int, columns: int, *, seed: int = 0) -> Tensor:
    """A Gaussian matrix in float64."""
    return torch.randn(rows, columns, generator=generator(seed), dtype=torch.float64)


def with_values(values: Tensor, rows: int, columns: int, *, seed: int = 0) -> Tensor:
    """A matrix with the given singular values, in float64."""
    left = torch.linalg.qr(matrix(rows, len(values), seed=seed))[0]
    right = torch.linalg.qr(matrix(columns, len(values), seed=seed + 1))[0]
    return (left * values.double()) @ right.mT


def compiled(module: nn.Module) -> nn.Module:
    """The module as one graph; what other tests compiled is forgotten, so that theirs do not count towards a limit."""
    torch.compiler.reset()
    return torch.compile(module, backend="aot_eager", fullgraph=True)
