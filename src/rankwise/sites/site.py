"""One place in a network where a product of weights lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from rankwise.product.product import Product
from rankwise.sites.factor import Factor
from rankwise.sites.layout import Norm
from rankwise.sites.source import Source, tensor_of

Kind = Literal["qk", "ov", "lora", "linear", "conv", "mlp", "embed", "matrix"]
Certified = Literal["here", "release", "no"]

ORIENTATION = {
    "qk": "left index: query, right index: key",
    "ov": "left index: output, right index: the attended token's input",
}


@dataclass(frozen=True)
class RotaryFacts:
    """Which dimensions of a head are rotated, and which two make a pair."""

    pairs: Literal["half", "interleaved"]
    rotated: int
    start: int = 0

    def index(self) -> Tensor:
        """The pairs as positions within the head, `[rotated / 2, 2]`."""
        half = self.rotated // 2
        if self.pairs == "half":
            columns = torch.stack([torch.arange(half), torch.arange(half) + half], 1)
        else:
            columns = torch.arange(self.rotated).reshape(half, 2)
        return columns + self.start


@dataclass(frozen=True, kw_only=True)
class AttentionFacts:
    """What a site must say of its attention, because the mathematics differs.

    Arguments:
        module: the path of the attention module.
        inputs: for each role (q, k, v) the path of the module that projects it.
        scale, softcap: the factor on the logits, and the cap `c tanh(logit / c)` on them.
        rotary: rotary position embedding; the product is then a family over offsets, and the site's own is offset 0.
        norm, norm_eps, norm_offset: a normalization of queries and keys; the product's scale then means nothing.
        latent_eps: what the normalization between latent factors adds to a mean square.
        cross: keys and values come from another stream.
        query_factors: how many of a QK site's factors stand on the query's side of the head.
        model_type: the model type of the configuration that governs the module, or None.
        signature: a digest of all that decides the formula; the release certificates are filed under it.
    """

    module: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    scale: float = 1.0
    softcap: float | None = None
    rotary: RotaryFacts | None = None
    norm: Norm | None = None
    norm_eps: float = 0.0
    norm_offset: float = 0.0
    latent_eps: float = 1e-6
    cross: bool = False
    query_factors: int = 1
    model_type: str | None = None
    signature: str = ""


@dataclass(frozen=True)
class Gain:
    """A vector that multiplies a factor: `offset + parameter`, shaped by its pattern to broadcast against it."""

    factor: Factor
    offset: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Site:
    """One product of weights, or a stack of them: where each factor is, and what its numbers mean.

    Arguments:
        name: by the grammar `[stack.]layers.N[.self|.cross].kind`.
        kind: qk, ov, lora, linear, conv, or a single matrix: mlp, embed, matrix.
        factors: the factors from left to right.
        batch: the batch axes by name and size; flattened row-major they number the heads.
        shape: the shape of the stack multiplied out.
        biases: for each factor the bias that augments it, or None.
        shifts: for each factor a second bias, added to the first, or None.
        gains: for each factor the gain folded into it, or None.
        attention: what the mathematics needs to know of the attention, or None.
        scaling: a number that the network multiplies the product by (an adapter's alpha / r).
        layout: the name of the table entry.
        certified: proved on this model, in a release, or not.
        notes: what a reader of the numbers should know.
    """

    name: str
    kind: Kind
    factors: tuple[Factor, ...]
    batch: tuple[tuple[str, int], ...] = ()
    shape: tuple[int, ...] = ()
    layer: int | None = None
    stack: str = ""
    biases: tuple[Factor | None, ...] = ()
    shifts: tuple[Factor | None, ...] = ()
    gains: tuple[Gain | None, ...] = ()
    attention: AttentionFacts | None = None
    scaling: float = 1.0
    layout: str = ""
    certified: Certified = "no"
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the tensors that the factors lie in, without repetition."""
        return tuple(dict.fromkeys(factor.parameter for factor in self.factors))

    @property
    def heads(self) -> int:
        """The number of matrices in the stack."""
        count = 1
        for _, size in self.batch:
            count *= size
        return count

    @property
    def orientation(self) -> str:
        """What the two indices of the product mean."""
        return ORIENTATION.get(self.kind, "as stored")

    def product(self, source: Source) -> Product:
        """The product of the stored weights: views of the source's tensors, nothing copied from a live module."""
        return Product(*(_view(factor, source) for factor in self.factors))

    def effective(self, source: Source) -> Product:
        """The product that the network computes with: biases as one more row or column, gains folded in.

        A logit is `[x_i, 1]^T P [x_j, 1]`; an end whose factor has no bias stays as wide as it was.
        """
        factors = [_view(factor, source) for factor in self.factors]
        for position in range(len(factors)):
            if added := self.added(position):
                dim = -2 if position == 0 and self.kind == "qk" else -1
                column = sum((_view(bias, source) for bias in added[1:]), _view(added[0], source))
                batch = torch.broadcast_shapes(factors[position].shape[:-2], column.shape[:-2])
                parts = [part.expand(*batch, *part.shape[-2:]) for part in (factors[position], column)]
                factors[position] = torch.cat(parts, dim)
        for position, gain in enumerate(self.gains):
            if gain is not None:
                factors[position] = factors[position] * (gain.offset + _view(gain.factor, source))
        product = Product(*factors)
        return product if self.scaling == 1.0 else product * self.scaling

    def added(self, position: int) -> tuple[Factor, ...]:
        """What is added behind one factor: its bias, and a shift where there is one."""
        places = (self.biases[position : position + 1], self.shifts[position : position + 1])
        return tuple(factor for place in places for factor in place if factor is not None)

    def renamed(self, name: str) -> Site:
        return replace(self, name=name)


def _view(factor: Factor, source: Source) -> Tensor:
    tensor, cut = tensor_of(source, factor.parameter, factor.rows)
    return factor.arrange(tensor) if cut else factor.view(tensor)
