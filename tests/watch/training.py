"""A small transformer that learns the standard library's own source text, byte by byte, the same way every time."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor, nn

from tests.givens import GPT


@cache
def text() -> Tensor:
    return torch.frombuffer(bytearray(inspect.getsource(argparse).encode()), dtype=torch.uint8) % 128


def gpt(*, width: int = 24, heads: int = 3, layers: int = 2, seed: int = 0) -> GPT:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return GPT(vocabulary=128, n_embd=width, n_head=heads, layers=layers)


def batch(step: int, *, size: int = 4, length: int = 16) -> tuple[Tensor, Tensor]:
    """What is learned at a step, whoever asks and whenever."""
    generator = torch.Generator().manual_seed(step)
    places = torch.randint(len(text()) - length - 1, (size, 1), generator=generator) + torch.arange(length + 1)
    tokens = text()[places].long()
    return tokens[:, :-1], tokens[:, 1:]


def adamw(model: nn.Module, decay: float = 0.1) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=decay)


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> Iterator[tuple[int, Tensor]]:
    """Make steps; after each, its number and its loss."""
    for step in steps:
        _, loss = model(*batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss
