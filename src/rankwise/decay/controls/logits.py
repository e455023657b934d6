"""The largest logit of every head, seen where the attention computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rankwise.sites.certify.capture import Capture, visible

# Queries are taken in blocks whose logits hold no more numbers than this.
_BLOCK = 1 << 22


class LargestLogits:
    """Keeps, for a number of attention modules, the largest logit of each head since it was last emptied.

    What it looks at is what the softmax, or the fused attention, was given: with rotary embedding, scale, mask and
    shared keys as they are. Fused kernels that hide their inputs (flash attention called directly, compiled models)
    show nothing. Looking costs the products of queries and keys once more.

    Arguments:
        modules: the modules by name, each with its number of heads.
    """

    def __init__(self, modules: dict[str, tuple[nn.Module, int]]) -> None:
        self._modules = modules
        self.values: dict[str, Tensor] = {}
        self._handles: list[RemovableHandle] = []

    def start(self) -> None:
        """Look at every forward pass from now on."""
        for name, (module, heads) in self._modules.items():
            before, after = self._around(name, heads)
            self._handles.append(module.register_forward_pre_hook(before, prepend=True))
            self._handles.append(module.register_forward_hook(after, always_call=True))

    def stop(self) -> None:
        """Look no longer."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def empty(self) -> None:
        """Forget what was seen."""
        self.values = {}

    def _around(self, name: str, heads: int) -> tuple[Callable[..., None], Callable[..., None]]:
        open_ones: list[_Maxima] = []

        def before(*_: Any) -> None:
            open_ones.append(_Maxima(heads))
            open_ones[-1].__enter__()

        def after(*_: Any) -> None:
            maxima = open_ones.pop()
            maxima.__exit__(None, None, None)
            if maxima.largest is not None:
                known = self.values.get(name)
                self.values[name] = maxima.largest if known is None else torch.maximum(known, maxima.largest)

        return before, after


class _Maxima(Capture):
    """A capture that keeps one number for each head."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.largest: Tensor | None = None

    @torch.no_grad()
    def _softmax(self, *args: Any, **kwargs: Any) -> None:
        super()._softmax(*args, **kwargs)
        while self.attentions:
            logits = self.attentions.pop().logits
            if logits.ndim == 3 and logits.shape[0] % self._heads == 0:
                logits = logits.unflatten(0, (-1, self._heads))
            if logits.ndim >= 3 and logits.shape[-3] == self._heads:
                self._keep(logits.where(visible(logits), -torch.inf))

    @torch.no_grad()
    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        query, key = query.detach(), key.detach()
        if query.ndim == 3 and query.shape[0] % self._heads == 0:
            query, key = (each.unflatten(0, (-1, self._heads)) for each in (query, key))
        if query.ndim < 4 or query.shape[-3] != self._heads:
            return
        if enable_gqa and key.shape[-3] != query.shape[-3]:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        tokens, others = query.shape[-2], key.shape[-2]
        block = max(1, _BLOCK // max(1, others * query.shape[:-2].numel()))
        for start in range(0, tokens, block):
            logits = (query[..., start : start + block, :] @ key.mT).float() * factor
            rows = slice(start, start + block)
            if is_causal:
                at = torch.arange(tokens, device=query.device)[rows, None]
                logits = logits.masked_fill(torch.arange(others, device=query.device) > at, -torch.inf)
            if attn_mask is not None:
                mask = attn_mask if attn_mask.shape[-2] == 1 else attn_mask[..., rows, :]
                masked = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
                logits = masked.where(visible(masked), -torch.inf)
            self._keep(logits)

    def _keep(self, logits: Tensor) -> None:
        found = logits.float().amax((-1, -2)).reshape(-1, self._heads).amax(0)
        self.largest = found if self.largest is None else torch.maximum(self.largest, found)


def largest_of_all(values: Sequence[Tensor]) -> list[Tensor]:
    """The largest over all processes that train together: each has seen its own examples."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()) or not values:
        return list(values)
    joined = torch.cat(list(values))
    torch.distributed.all_reduce(joined, op=torch.distributed.ReduceOp.MAX)
    return list(joined.split([len(each) for each in values]))
