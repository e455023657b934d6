"""Attention whose heads are of any size: its two products at a rank of choice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankwise.errors import UserError
from rankwise.layers.head_weights import HeadWeights
from rankwise.layers.initialization import Draw
from rankwise.product.product import Product

if TYPE_CHECKING:
    from jaxtyping import Float

Start = Literal["balanced", "truncated", "drawn"]


class FactorizedAttention(nn.Module):
    """Multi-head attention with the products `Q_h^T K_h` and `O_h V_h` of each head at a rank of choice, its head size.

    `softmax(scale * x Q_h^T K_h y^T) y V_h^T O_h^T`, summed over the heads: a layer of two factorized forms for each
    head, whatever the width is. Compressing it is choosing smaller heads; with `depth=1` the forms are `Q_h^T M_h K_h`
    and `O_h N_h V_h`.

    Arguments:
        width: of the input and the output.
        heads: the number of heads.
        head_size: the rank of `Q_h^T K_h`; need not be `width / heads`.
        value_size: the rank of `O_h V_h`; the head size by default.
        key_heads: how many heads keys and values have, each shared by `heads / key_heads` query heads; `heads` by
            default.
        key_width, value_width: of what keys and values are computed from; `width` by default.
        depth: the number of inner factors of each product, 0 or 1. They stand on the side of keys and values, one for
            each of their heads, and start at the identity, as in the paper.
        bias: whether queries, keys, values and output have biases; with inner factors queries and output alone, since
            those of keys and values change nothing that the output's could not (see `HeadWeights.truncated`).
        causal: whether a query sees only keys up to its own position.
        dropout: of the attention weights, in training.
        scale: the factor on the logits. By default `head_size ** -0.5`; where the start is a truncation of larger
            heads, theirs, so that the logits are those of the larger heads as far as the rank allows.
        init: "balanced" draws every weight at the head size and balances each head's two products, which changes none
            of them; "truncated" draws heads of the usual size `width // heads` and keeps the leading singular values
            of their products; "drawn" leaves the draw as it is.
        draw: fills a weight in place; Xavier's uniform draw, as in `torch.nn.MultiheadAttention`.

    >>> attention = FactorizedAttention(64, 4, head_size=8)
    >>> attention(torch.randn(2, 10, 64)).shape, attention.qk.shape
    (torch.Size([2, 10, 64]), torch.Size([4, 1, 64, 64]))
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_size: int,
        value_size: int | None = None,
        key_heads: int | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
        depth: int = 0,
        bias: bool = True,
        causal: bool = False,
        dropout: float = 0.0,
        scale: float | None = None,
        init: Start = "balanced",
        draw: Draw = nn.init.xavier_uniform_,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.key_heads = heads if key_heads is None else key_heads
        self.head_size = head_size
        self.value_size = head_size if value_size is None else value_size
        self.key_width = width if key_width is None else key_width
        self.value_width = width if value_width is None else value_width
        self.depth = depth
        self.causal, self.dropout = causal, dropout
        self.init: Start = init
        self.draw = draw
        self._check()
        full = width // heads
        self.scale = scale if scale is not None else (full if init == "truncated" else head_size) ** -0.5
        # Allocated without a draw of their own, so that the random numbers that are used up are those of the start.
        made: dict[str, Any] = {"device": "meta", "dtype": dtype}
        self.query = nn.Linear(width, heads * head_size, bias, **made)
        self.key = nn.Linear(self.key_width, self.key_heads * head_size, bias and not depth, **made)
        self.value = nn.Linear(self.value_width, self.key_heads * self.value_size, bias and not depth, **made)
        self.output = nn.Linear(heads * self.value_size, width, bias, **made)
        self.query_key_inner: nn.Parameter | None = None
        self.output_value_inner: nn.Parameter | None = None
        if depth:
            self.query_key_inner = nn.Parameter(torch.empty(self.key_heads * head_size, head_size, **made))
            self.output_value_inner = nn.Parameter(
                torch.empty(self.key_heads * self.value_size, self.value_size, **made)
            )
        self.to_empty(device=torch.get_default_device() if device is None else device)
        self.reset_parameters()

    @classmethod
    def from_weights(
        cls,
        weights: HeadWeights,
        *,
        head_size: int,
        value_size: int | None = None,
        depth: int = 0,
        scale: float | None = None,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> FactorizedAttention:
        """The best approximation of a given attention at a smaller head size: every head's two products truncated.

        Arguments:
            weights: the weights to start from.
            head_size, value_size: the ranks to keep, at most those of the weights.
            depth: the number of inner factors, 0 or 1.
            scale: the factor on the logits; that of the given heads, `weights.head_size ** -0.5`, by default.
            causal, dropout: as for a new layer.

        >>> dense = {name: torch.randn(12, 12) for name in ("query", "key", "value", "output")}
        >>> small = FactorizedAttention.from_weights(HeadWeights(**dense, heads=3, key_heads=3), head_size=2)
        >>> small.query.weight.shape, small.scale
        (torch.Size([6, 12]), 0.5)
        """
        value_size = head_size if value_size is None else value_size
        small = weights.truncated(head_size, value_size)
        biases = (small.query_bias, small.key_bias, small.value_bias, small.output_bias)
        layer = cls(
            weights.query.shape[1],
            weights.heads,
            head_size=head_size,
            value_size=value_size,
            key_heads=weights.key_heads,
            key_width=weights.key.shape[1],
            value_width=weights.value.shape[1],
            depth=depth,
            bias=any(bias is not None for bias in biases),
            causal=causal,
            dropout=dropout,
            scale=weights.head_size**-0.5 if scale is None else scale,
            device="meta",
            dtype=weights.query.dtype,
        )
        layer.to_empty(device=weights.query.device)
        layer._take(small)
        return layer

    @property
    def qk(self) -> Product:
        """`Q_h^T K_h` (or `Q_h^T M_h K_h`) of the live parameters, biases left aside."""
        return self._chain(self._stored().qk, self.query_key_inner)

    @property
    def ov(self) -> Product:
        """`O_h V_h` (or `O_h N_h V_h`) of the live parameters, biases left aside."""
        return self._chain(self._stored().ov, self.output_value_inner)

    @property
    def weights(self) -> HeadWeights:
        """The parameters as the weights of attention without inner factors, which are multiplied to keys and values."""
        stored = self._stored()
        if self.query_key_inner is None or self.output_value_inner is None:
            return stored
        return replace(
            stored,
            key=self._inside(self.key.weight, self.query_key_inner),
            value=self._inside(self.value.weight, self.output_value_inner),
        )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights and start as `init` says; biases start at zero."""
        if self.query.weight.device.type == "meta":
            return
        truncating = self.init == "truncated"
        sizes = (self.width // self.heads,) * 2 if truncating else (self.head_size, self.value_size)
        drawn = self._drawn(*sizes)
        if truncating:
            drawn = drawn.truncated(self.head_size, self.value_size)
        elif self.init == "balanced":
            drawn = drawn.balanced()
        self._take(drawn)

    def forward(
        self,
        query: Float[Tensor, "*batch queries width"],
        key: Float[Tensor, "*batch keys key_width"] | None = None,
        value: Float[Tensor, "*batch keys value_width"] | None = None,
        *,
        mask: Tensor | None = None,
    ) -> Float[Tensor, "*batch queries width"]:
        """Attend from `query` to `key` and `value`; self-attention where only the first is given.

        Arguments:
            query, key, value: the streams; keys are the queries' stream by default, and values the keys'.
            mask: broadcastable to `[*batch, heads, queries, keys]`: true where a key may be seen, or numbers to add to
                the logits.
        """
        queries, keys, values = self._heads_of(query, key, value)
        if self.causal and mask is not None:
            mask = _causal(mask, queries.shape[-2], keys.shape[-2])
        attended = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal and mask is None,
            scale=self.scale,
            enable_gqa=self.key_heads != self.heads,
        )
        return self._merged(attended)

    def _heads_of(self, query: Tensor, key: Tensor | None, value: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        key = query if key is None else key
        value = key if value is None else value
        queries = self.query(query).unflatten(-1, (self.heads, self.head_size))
        keys = self.key(key).unflatten(-1, (self.key_heads, self.head_size)).transpose(-2, -3)
        values = self.value(value).unflatten(-1, (self.key_heads, self.value_size)).transpose(-2, -3)
        if self.query_key_inner is not None and self.output_value_inner is not None:
            keys = keys @ self._by_head(self.query_key_inner).mT
            values = values @ self._by_head(self.output_value_inner).mT
        return queries.transpose(-2, -3), keys, values

    def _by_head(self, rows: Tensor) -> Float[Tensor, "g r columns"]:
        return rows.unflatten(0, (self.key_heads, -1))

    def _inside(self, weight: Tensor, inner: Tensor) -> Tensor:
        """The weight of keys or values with its inner factor multiplied to it."""
        return (self._by_head(inner) @ self._by_head(weight)).flatten(0, 1)

    def _chain(self, product: Product, inner: Tensor | None) -> Product:
        return product if inner is None else Product(product.left, self._by_head(inner)[:, None], product.right)

    def _stored(self) -> HeadWeights:
        names = ("query", "key", "value", "output")
        tensors = {name: self.get_submodule(name).weight for name in names}
        tensors |= {f"{name}_bias": self.get_submodule(name).bias for name in names}
        return HeadWeights(**tensors, heads=self.heads, key_heads=self.key_heads)  # pyright: ignore[reportArgumentType]

    def _merged(self, attended: Tensor) -> Tensor:
        return self.output(attended.transpose(-2, -3).flatten(-2))

    def _drawn(self, head_size: int, value_size: int) -> HeadWeights:
        like = self.query.weight
        shapes = {
            "query": (self.heads * head_size, self.width),
            "key": (self.key_heads * head_size, self.key_width),
            "value": (self.key_heads * value_size, self.value_width),
            "output": (self.width, self.heads * value_size),
        }
        tensors = {name: like.new_empty(shape) for name, shape in shapes.items()}
        for tensor in tensors.values():
            self.draw(tensor)
        return HeadWeights(**tensors, heads=self.heads, key_heads=self.key_heads)

    @torch.no_grad()
    def _take(self, weights: HeadWeights) -> None:
        for name in ("query", "key", "value", "output"):
            linear = self.get_submodule(name)
            linear.weight.copy_(getattr(weights, name))  # pyright: ignore[reportCallIssue]
            bias = getattr(weights, f"{name}_bias")
            if linear.bias is not None:
                linear.bias.zero_() if bias is None else linear.bias.copy_(bias)  # pyright: ignore[reportCallIssue]
        for inner in (self.query_key_inner, self.output_value_inner):
            if inner is not None:
                inner.copy_(torch.eye(inner.shape[1], dtype=inner.dtype).repeat(self.key_heads, 1))

    def _check(self) -> None:
        sizes = {
            "width": self.width,
            "heads": self.heads,
            "head_size": self.head_size,
            "value_size": self.value_size,
            "key_heads": self.key_heads,
        }
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise UserError(f"{name} must be a whole number of at least 1, got {size!r}")
        if isinstance(self.depth, bool) or self.depth not in (0, 1):
            raise UserError(f"depth, the number of inner factors of attention, must be 0 or 1, got {self.depth!r}")
        if self.heads % self.key_heads:
            raise UserError(
                f"{self.heads} heads cannot share {self.key_heads} key heads evenly: give a divisor of them"
            )
        if self.init not in get_args(Start) or not callable(self.draw):
            raise UserError(
                f"init must be one of {', '.join(get_args(Start))} and draw a function that fills a tensor in place, "
                f"got {self.init!r} and {self.draw!r}"
            )
        if self.init == "truncated" and not max(self.head_size, self.value_size) <= self.width // self.heads:
            raise UserError(
                f"init='truncated' cuts heads of size {self.width // self.heads} = {self.width} // {self.heads} down, "
                f"got head_size={self.head_size} and value_size={self.value_size}: give less, or init='balanced'"
            )

    def extra_repr(self) -> str:
        return (
            f"width={self.width}, heads={self.heads}, head_size={self.head_size}, value_size={self.value_size}, "
            f"key_heads={self.key_heads}, depth={self.depth}, scale={self.scale:g}, causal={self.causal}"
        )


def _causal(mask: Tensor, queries: int, keys: int) -> Tensor:
    """A mask with all keys behind the query's position closed as well."""
    open_ = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()
    return mask & open_ if mask.dtype == torch.bool else mask.masked_fill(~open_, float("-inf"))
