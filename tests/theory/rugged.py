"""Losses with many minima and the matrices that the tests of decay share."""

from __future__ import annotations

import torch

from rankwise.theory import HeadLoss, MatrixLoss, full_attention, random_factors

SPECTRUM = torch.diag(torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0], dtype=torch.float64))


def normal(*shape: int, seed: int) -> torch.Tensor:
    """Independent normal entries."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def wide(seed: int = 0) -> tuple[MatrixLoss, torch.Tensor, torch.Tensor]:
    """A loss with many minima of a rectangular product, and unbalanced factors."""
    left, right = random_factors((4, 3), rank=2, scale=0.7, seed=seed)
    return MatrixLoss.rugged((4, 3), seed=seed, waves=5), 1.5 * left, right


def toy(width: int, tokens: int, samples: int, seed: int = 0):
    """A teacher of standard deviation `1 / sqrt d` whose queries and keys are halved, and a random start."""
    inputs = normal(samples, tokens, width, seed=seed)
    query_key, output_value = (
        normal(width, width, seed=seed + place) @ normal(width, width, seed=seed + place + 1) / width
        for place in (10, 20)
    )
    starts = [tuple(normal(width, width, seed=seed + place + side) for side in (0, 1)) for place in (30, 40)]
    return HeadLoss(inputs, full_attention(inputs, query_key / 4, output_value)), starts
