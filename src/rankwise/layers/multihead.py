"""Factorized attention in the place of `torch.nn.MultiheadAttention`, called and answering as that is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rankwise.errors import UserError
from rankwise.layers.attention import FactorizedAttention
from rankwise.layers.head_weights import HeadWeights


class FactorizedMultiheadAttention(FactorizedAttention):
    """`FactorizedAttention` that takes the arguments of `torch.nn.MultiheadAttention` and returns what it returns.

    Made by `from_multihead`; inside `torch.nn.TransformerEncoderLayer` and its like it takes the dense module's place.
    """

    batch_first: bool = True
    # What torch's transformer layers look up before they take a faster path of their own, which this must not be.
    in_proj_bias: None = None
    _qkv_same_embed_dim: bool = False

    @property
    def embed_dim(self) -> int:
        return self.width

    @property
    def num_heads(self) -> int:
        return self.heads

    @classmethod
    def from_multihead(
        cls, dense: nn.MultiheadAttention, *, head_size: int, value_size: int | None = None, depth: int = 0
    ) -> FactorizedMultiheadAttention:
        """A layer of smaller heads in place of a dense one, which is left alone: the best approximation head by head.

        The logits keep the dense layer's scale.

        >>> dense = nn.MultiheadAttention(12, 3, batch_first=True)
        >>> exact, stream = FactorizedMultiheadAttention.from_multihead(dense, head_size=4), torch.randn(2, 5, 12)
        >>> torch.allclose(exact(stream, stream, stream)[0], dense(stream, stream, stream)[0], atol=1e-5)
        True
        """
        layer = cls.from_weights(
            dense_weights(dense), head_size=head_size, value_size=value_size, depth=depth, dropout=dense.dropout
        )
        assert isinstance(layer, cls)
        layer.batch_first = dense.batch_first
        for name, parameter in layer.named_parameters():
            source = dense.out_proj.weight if name.startswith("output") else next(dense.parameters())
            parameter.requires_grad_(source.requires_grad)
        return layer.train(dense.training)

    @torch.no_grad()
    def fold(self) -> nn.MultiheadAttention:
        """The dense layer with the same function: every head filled up with zeros to `width / heads`."""
        size = self.width // self.heads
        if size * self.heads != self.width or size < max(self.head_size, self.value_size):
            raise UserError(
                f"heads of size {self.head_size} and {self.value_size} do not fit into the {self.width} / {self.heads} "
                "of a torch.nn.MultiheadAttention: keep the layer as it is"
            )
        weights = self.weights
        like = self.query.weight
        dense = nn.MultiheadAttention(
            self.width,
            self.heads,
            dropout=self.dropout,
            bias=self.query.bias is not None,
            kdim=self.key_width,
            vdim=self.value_width,
            batch_first=self.batch_first,
            device=like.device,
            dtype=like.dtype,
        )
        # The dense layer scales by its own head size: what is left over is shared by queries and keys.
        share = (self.scale * size**0.5) ** 0.5
        members = self.heads // self.key_heads
        query = _widened(weights.query * share, self.heads, size, 1)
        key = _widened(weights.key * share, self.key_heads, size, members)
        value = _widened(weights.value, self.key_heads, size, members)
        if dense._qkv_same_embed_dim:
            dense.in_proj_weight.copy_(torch.cat([query, key, value]))
        else:
            for target, source in zip(("q", "k", "v"), (query, key, value), strict=True):
                getattr(dense, f"{target}_proj_weight").copy_(source)
        dense.out_proj.weight.copy_(_widened(weights.output.mT, self.heads, size, 1).mT)
        if dense.in_proj_bias is not None:
            # With inner factors keys and values have no bias.
            key_bias, value_bias = (
                linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
                for linear in (self.key, self.value)
            )
            parts = (
                (self.query.bias * share, self.heads, 1),
                (key_bias * share, self.key_heads, members),
                (value_bias, self.key_heads, members),
            )
            biases = [_widened(bias[:, None], count, size, copies).squeeze(1) for bias, count, copies in parts]
            dense.in_proj_bias.copy_(torch.cat(biases))
            dense.out_proj.bias.copy_(self.output.bias)
        return dense.train(self.training)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As `torch.nn.MultiheadAttention`, whose masks are true where a key may *not* be seen."""
        if is_causal and attn_mask is None:
            raise UserError("is_causal is a hint about attn_mask: give the mask as well, or make the layer causal")
        batched = query.ndim == 3
        streams = [one if batched else one.unsqueeze(0 if self.batch_first else 1) for one in (query, key, value)]
        streams = [one if self.batch_first else one.transpose(0, 1) for one in streams]
        mask = self._mask(key_padding_mask, attn_mask, streams[0])
        if need_weights:
            output, weights = self._with_weights(streams[0], streams[1], streams[2], mask)
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            output, weights = super().forward(*streams, mask=mask), None
        output = output if self.batch_first else output.transpose(0, 1)
        if not batched:
            output = output.squeeze(0 if self.batch_first else 1)
            weights = None if weights is None else weights.squeeze(0)
        return output, weights

    def _with_weights(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        queries, keys, values = self._heads_of(query, key, value)
        members = self.heads // self.key_heads
        keys, values = (one.repeat_interleave(members, -3) for one in (keys, values))
        logits = self.scale * queries @ keys.mT
        weights = (logits if mask is None else logits + mask).softmax(-1)
        seen = nn.functional.dropout(weights, self.dropout, self.training)
        return self._merged(seen @ values), weights

    def _mask(self, key_padding_mask: Tensor | None, attn_mask: Tensor | None, query: Tensor) -> Tensor | None:
        """Both masks as numbers to add to the logits, `[batch, heads or 1, queries or 1, keys]`."""
        total: Tensor | None = None
        if attn_mask is not None:
            per_head = attn_mask.ndim == 3
            total = _added(attn_mask, query.dtype)
            total = total.unflatten(0, (-1, self.heads)) if per_head else total[None, None]
        if key_padding_mask is not None:
            padding = key_padding_mask if key_padding_mask.ndim == 2 else key_padding_mask[None]
            padding = _added(padding, query.dtype)[:, None, None]
            total = padding if total is None else total + padding
        return total


def dense_weights(dense: nn.MultiheadAttention) -> HeadWeights:
    """The weights of torch's attention, or one line that says why they are not all that it computes with."""
    if dense.bias_k is not None or dense.add_zero_attn:
        raise UserError(
            "a torch.nn.MultiheadAttention with a learned or a zero key (add_bias_kv, add_zero_attn) has no factorized "
            "form: leave it dense"
        )
    width = dense.embed_dim
    if dense._qkv_same_embed_dim:
        query, key, value = dense.in_proj_weight.detach().split(width)
    else:
        query, key, value = (getattr(dense, f"{name}_proj_weight").detach() for name in "qkv")
    given: dict[str, Any] = {}
    if dense.in_proj_bias is not None:
        names = ("query_bias", "key_bias", "value_bias")
        given = dict(zip(names, dense.in_proj_bias.detach().split(width), strict=True))
        given["output_bias"] = dense.out_proj.bias.detach()
    return HeadWeights(
        query=query,
        key=key,
        value=value,
        output=dense.out_proj.weight.detach(),
        heads=dense.num_heads,
        key_heads=dense.num_heads,
        **given,
    )


def _widened(rows: Tensor, heads: int, size: int, copies: int) -> Tensor:
    """Rows of heads filled up with zeros to a size, every head repeated for those that share it."""
    by_head = rows.unflatten(0, (heads, -1))
    filled = nn.functional.pad(by_head, (0, 0, 0, size - by_head.shape[1]))
    return filled.repeat_interleave(copies, 0).flatten(0, 1)


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as numbers to add: minus infinity where it is true."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf")) if mask.dtype == torch.bool else mask
