"""A transformer whose attention weights are diagonal: Example 3.2 of the paper, as a module and as a problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rankwise.errors import UserError
from rankwise.theory.coordinates import Pairing
from rankwise.theory.problem import Problem
from rankwise.theory.problems.modules import Diagonal, DiagonalPair, from_module

if TYPE_CHECKING:
    from jaxtyping import Float


class DiagonalAttention(nn.Module):
    """Attention heads side by side, `sum_h softmax(X diag(w_K w_Q) X^T - m_h D) X diag(w_V w_O)`, without a scale.

    `D` holds the distances between tokens, `m_h` is how fast a head forgets them.
    """

    def __init__(self, *, width: int, heads: int, locality: Sequence[float] = ()) -> None:
        super().__init__()
        if locality and len(locality) != heads:
            raise UserError(f"{len(locality)} localities were given for {heads} heads: give one for each head, or none")
        key, query, value, output = (torch.ones(heads * width, dtype=torch.float64) for _ in range(4))
        self.key, self.query = nn.Parameter(key), nn.Parameter(query)
        self.value, self.output = nn.Parameter(value), nn.Parameter(output)
        self.heads = heads
        self.locality = nn.Buffer(torch.tensor(locality or [0.0] * heads, dtype=torch.float64).view(heads, 1, 1))

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        places = torch.arange(x.shape[-2], device=x.device)
        key, query, value, output = (
            one.view(self.heads, 1, -1) for one in (self.key, self.query, self.value, self.output)
        )
        x = x.unsqueeze(-3)
        attention = torch.softmax((x * query) @ (x * key).mT - self.locality * (places[:, None] - places).abs(), -1)
        return (attention @ (x * value) * output).sum(-3)


class DiagonalTransformer(nn.Module):
    """Layers of diagonal attention and of feed-forward networks, each added to what it read.

        Z' = Z + attention(Z),    Z'' = Z' + gelu(Z' W_A) W_B^T,

    with fixed random feed-forward weights: only attention is trained.

    Arguments:
        layers: how many.
        heads: in each layer.
        width: of the tokens, and of every head.
        hidden: the feed-forward width; 0 leaves the feed-forward layers out.
        seed: of the feed-forward weights.
        locality: for each head, how fast its attention falls off with distance. Without it the heads of a layer are
            exchangeable, and their first products tie.
    """

    def __init__(
        self, *, layers: int, heads: int, width: int, hidden: int, seed: int = 0, locality: Sequence[float] = ()
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.width = width
        self.attention = nn.ModuleList(
            DiagonalAttention(width=width, heads=heads, locality=locality) for _ in range(layers)
        )
        expand, contract = torch.randn(2, layers, width, hidden, generator=generator, dtype=torch.float64)
        self.heads = heads
        self.expand = nn.Buffer(expand / width**0.5)
        self.contract = nn.Buffer(contract / max(hidden, 1) ** 0.5)

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        for layer, attention in enumerate(self.attention):
            x = x + attention(x)
            if self.expand.shape[-1]:
                x = x + nn.functional.gelu(x @ self.expand[layer]) @ self.contract[layer].mT
        return x

    @property
    def pairs(self) -> list[DiagonalPair]:
        """Its diagonal weights: layer by layer, head by head, keys with queries before values with outputs."""
        weights = {Pairing.QK: ("key", "query"), Pairing.VO: ("value", "output")}
        return [
            DiagonalPair(
                left=Diagonal(f"attention.{layer}.{left}", row=head * self.width),
                right=Diagonal(f"attention.{layer}.{right}", row=head * self.width),
                width=self.width,
                layer=layer,
                head=head,
                pairing=pairing,
            )
            for layer in range(len(self.attention))
            for head in range(self.heads)
            for pairing, (left, right) in weights.items()
        ]


def diagonal_transformer(
    inputs: Float[Tensor, "samples tokens d"],
    targets: Float[Tensor, "samples tokens d"],
    *,
    layers: int,
    heads: int,
    hidden: int,
    seed: int = 0,
    locality: Sequence[float] = (),
) -> Problem:
    """Training the attention of a diagonal transformer on examples, by autograd; `p = 2 d heads layers` products.

        L(q) = mean over samples and tokens of 1/2 |f(X; q) - Y|^2

    Arguments:
        inputs: `X`.
        targets: `Y`.
        layers: of the transformer.
        heads: in each layer.
        hidden: the width of its fixed feed-forward layers.
        seed: of their weights.
        locality: for each head, how fast its attention falls off with distance; needed to tell two heads apart.

    >>> inputs = torch.ones(1, 2, 3).double()
    >>> problem = diagonal_transformer(inputs, inputs, layers=2, heads=1, hidden=4)
    >>> problem.size, problem.name(11)
    (12, '11 (layer 1 head 0 VO 2)')
    """
    inputs, targets = (torch.as_tensor(one, dtype=torch.float64) for one in (inputs, targets))
    module = DiagonalTransformer(
        layers=layers, heads=heads, width=inputs.shape[-1], hidden=hidden, seed=seed, locality=locality
    )
    return from_module(
        module, pairs=module.pairs, inputs=inputs, loss=lambda outputs: (outputs - targets).square().sum(-1).mean() / 2
    )
