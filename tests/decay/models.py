"""Small models in float64 whose products are of every form: heads, grouped heads, adapters, chains, tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rankwise.product.cp import CP
from rankwise.sites.find import find
from rankwise.sites.sites import Sites
from tests.sites.models import GPT2, LLAMA, Tree, gpt2_shapes, llama_shapes, state


def llama(seed: int = 0, *, layers: int = 2) -> Tree:
    """Grouped keys, rotary queries; q, k, v and o apart."""
    return Tree(state(llama_shapes(layers=layers), seed), {**LLAMA, "num_hidden_layers": layers})


def gpt2(seed: int = 0) -> Tree:
    """Queries, keys and values fused in one transposed tensor."""
    return Tree(state(gpt2_shapes(), seed), GPT2)


def adapter(seed: int = 0) -> Tree:
    """One LoRA pair, both factors drawn."""
    return Tree(state({"up.lora_B.weight": (9, 3), "up.lora_A.weight": (3, 7), "up.weight": (9, 7)}, seed))


def chain(*widths: int, seed: int = 0) -> Tree:
    """One factorized layer of the given widths."""
    shapes = {f"up.factors.{place}": widths[place : place + 2] for place in range(len(widths) - 1)}
    return Tree(state(shapes, seed))


class Tensorized(nn.Module):
    """A tensor of three modes in CP form, and a bias that is no part of it."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        draw = {size: torch.randn(size, 2, generator=generator, dtype=torch.float64) for size in (3, 4, 5)}
        self.cores = nn.ParameterList(nn.Parameter(core) for core in draw.values())
        self.bias = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    @property
    def form(self) -> CP:
        return CP(tuple(self.cores))

    def frobenius_penalty(self) -> Tensor:
        return self.form.frobenius_penalty()


def products(model: nn.Module, kind: str | tuple[str, ...]) -> Sites:
    return find(model).select(kind=kind)


def fill_gradients(model: nn.Module, seed: int = 1) -> dict[str, Tensor]:
    """Random gradients for every parameter, as a loss would leave them; copies of them by name."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter)
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def dense_gradients(model: nn.Module, sites: Sites, value: Any) -> dict[str, Tensor]:
    """By autograd: the gradient of `value` summed over every matrix of every site, multiplied out."""
    total = sum(value(site.product(model).dense()).sum() for site in sites)
    named = dict(model.named_parameters())
    found = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(named[name]) if each is None else each for name, each in zip(named, found, strict=True)
    }
