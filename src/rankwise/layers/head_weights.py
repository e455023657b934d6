"""The four weights of an attention layer as the two products that it is, cut down to a head size of choice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.groups import concatenated, separated
from rankwise.product.moves import balancing_move
from rankwise.product.product import Product

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True, kw_only=True)
class HeadWeights:
    """Queries, keys, values and output of an attention layer, stored as `torch.nn.Linear` stores them.

    With the heads' shares `Q_h`, `K_h`, `V_h`, `O_h`, the layer depends on them only through `Q_h^T K_h` and `O_h V_h`.

    Arguments:
        query: `[heads * head size, width]`.
        key: `[key heads * head size, key width]`; consecutive query heads share a key head.
        value: `[key heads * value size, value width]`.
        output: `[width, heads * value size]`.
        query_bias, key_bias, value_bias, output_bias: or None.
        heads, key_heads: how many there are of each.
    """

    query: Float[Tensor, "hr width"]
    key: Float[Tensor, "gr key_width"]
    value: Float[Tensor, "gs value_width"]
    output: Float[Tensor, "width hs"]
    query_bias: Float[Tensor, " hr"] | None = None
    key_bias: Float[Tensor, " gr"] | None = None
    value_bias: Float[Tensor, " gs"] | None = None
    output_bias: Float[Tensor, " width"] | None = None
    heads: int
    key_heads: int

    def __post_init__(self) -> None:
        if self.heads < 1 or self.key_heads < 1 or self.heads % self.key_heads:
            raise UserError(
                f"{self.heads} heads cannot share {self.key_heads} key heads evenly: heads must be a multiple of them"
            )
        rows = {"query": self.heads, "key": self.key_heads, "value": self.key_heads}
        for name, count in rows.items():
            weight: Tensor = getattr(self, name)
            if weight.ndim != 2 or weight.shape[0] % count:
                raise UserError(
                    f"the {name} weight must be [{count} heads * head size, width], got {tuple(weight.shape)}"
                )
        if self.query.shape[0] // self.heads != self.key.shape[0] // self.key_heads:
            raise UserError(
                f"queries of head size {self.query.shape[0] // self.heads} meet keys of head size "
                f"{self.key.shape[0] // self.key_heads}: they must be equal"
            )
        expected = (self.query.shape[1], self.heads * self.value_size)
        if tuple(self.output.shape) != expected:
            raise UserError(
                f"the output weight must be [width, heads * value size] = {expected}, got {tuple(self.output.shape)}"
            )
        for name in ("query", "key", "value", "output"):
            bias: Tensor | None = getattr(self, f"{name}_bias")
            weight = getattr(self, name)
            if bias is not None and tuple(bias.shape) != (weight.shape[0],):
                raise UserError(f"the {name} bias must have {weight.shape[0]} entries, got shape {tuple(bias.shape)}")

    @property
    def head_size(self) -> int:
        return self.query.shape[0] // self.heads

    @property
    def value_size(self) -> int:
        return self.value.shape[0] // self.key_heads

    @property
    def qk(self) -> Product:
        """`Q_h^T K_h`, `[key heads, queries of each]` of `[width, key width]`."""
        query = self.query.reshape(self.key_heads, -1, self.head_size, self.query.shape[1])
        return Product(query.mT, self.key.reshape(self.key_heads, 1, self.head_size, -1))

    @property
    def ov(self) -> Product:
        """`O_h V_h`, `[key heads, queries of each]` of `[width, value width]`."""
        output = self.output.reshape(self.output.shape[0], self.key_heads, -1, self.value_size)
        return Product(output.movedim(0, 2), self.value.reshape(self.key_heads, 1, self.value_size, -1))

    def balanced(self) -> HeadWeights:
        """The same products with factors that share them evenly; the biases of queries, keys and values move along."""
        moved: dict[str, Tensor] = {}
        for names, product in ((("query", "key"), self.qk), (("output", "value"), self.ov)):
            move = balancing_move(concatenated(product, 1))
            matrix, inverse = move.matrix[:, None], move.inverse[:, None]
            left, right = (factor.double() for factor in product.factors)
            moved |= self._stored(names[0], Product(left @ matrix, inverse @ right))
            if names[0] == "query" and self.query_bias is not None:
                bias = self.query_bias.double().reshape(self.key_heads, -1, 1, self.head_size)
                moved["query_bias"] = (bias @ matrix).flatten()
            if (added := getattr(self, f"{names[1]}_bias")) is not None:
                moved[f"{names[1]}_bias"] = (inverse[:, 0] @ added.double().reshape(self.key_heads, -1, 1)).flatten()
        return replace(self, **{name: value.to(getattr(self, name).dtype) for name, value in moved.items()})

    def truncated(self, head_size: int, value_size: int) -> HeadWeights:
        """The best approximation of every head's two products at smaller head sizes, balanced.

        Each product keeps its leading singular values (Eckart and Young); heads that share a key or value head are cut
        together. Biases first go where they cost no rank, which leaves the function as it is: that of the keys adds the
        same to all logits of a query, so that the softmax does not see it, and is left out; that of the values passes
        through weights that sum to one (before dropout), and moves into the output's. That of the queries is one more
        row of the product.

        Arguments:
            head_size: the rank of `Q_h^T K_h`.
            value_size: the rank of `O_h V_h`.
        """
        for name, asked, limit in (
            ("head_size", head_size, self.head_size),
            ("value_size", value_size, self.value_size),
        ):
            if not 1 <= asked <= limit:
                raise UserError(f"{name} must be from 1 to {limit}, that of the weights to start from, got {asked}")
        qk, ov = self.qk, self.ov
        queries = qk.left
        if self.query_bias is not None:
            bias = self.query_bias.reshape(self.key_heads, -1, 1, self.head_size)
            queries = torch.cat([queries, bias], -2)
        logits = _cut(Product(queries, qk.right), head_size)
        weights = Product(logits.left[..., : qk.shape[-2], :], logits.right)
        given: dict[str, Any] = self._stored("query", weights) | self._stored("output", _cut(ov, value_size))
        given["query_bias"] = None if self.query_bias is None else logits.left[..., -1, :].flatten()
        given["key_bias"] = None if self.key_bias is None else self.key.new_zeros(self.key_heads * head_size)
        given["value_bias"] = None if self.value_bias is None else self.value.new_zeros(self.key_heads * value_size)
        given["output_bias"] = self._carried_output_bias()
        return replace(self, **given)

    def _carried_output_bias(self) -> Tensor | None:
        if self.value_bias is None:
            return self.output_bias
        value = self.value_bias.double().reshape(self.key_heads, 1, self.value_size, 1)
        carried = (self.ov.left.double() @ value).sum((0, 1)).squeeze(-1)
        start = 0.0 if self.output_bias is None else self.output_bias.double()
        return (start + carried).to(self.output.dtype)

    def _stored(self, left: str, product: Product) -> dict[str, Tensor]:
        """The factors of one of the products as weights, by name."""
        if left == "query":
            return {"query": product.left.mT.flatten(0, 2), "key": product.right.flatten(0, 2)}
        return {"output": product.left.movedim(2, 0).flatten(1), "value": product.right.flatten(0, 2)}


def _cut(product: Product, rank: int) -> Product:
    joined = concatenated(product, 1).truncated(rank=rank)
    return separated(joined, 1, product.batch_shape[1], shared="right")
