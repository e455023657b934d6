"""See the logits of an attention module, whatever way it computes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_LARGEST = {torch.max, torch.amax, Tensor.max, Tensor.amax}
_SOFTMAX = {torch.softmax, torch.special.softmax, Tensor.softmax, F.softmax}
_BELOW_EVERY_LOGIT = -1e4


@dataclass(frozen=True)
class Attention:
    """What one attention call computed with.

    Arguments:
        logits: what the softmax was given, keys last; for fused attention the products alone, without its mask.
        pattern: the attention weights, keys last.
    """

    logits: Tensor
    pattern: Tensor


class Capture(TorchFunctionMode):
    """While active, keeps the logits of every softmax and of every fused attention call.

    `torch.nn.functional.multi_head_attention_forward` reads its projections' weights without calling them: `inputs` and
    `output` are its own, and `streams` replaces its arguments, as `:q`, `:k` and `:v`.

    >>> with Capture() as seen:
    ...     _ = torch.softmax(torch.zeros(2, 3), -1)
    >>> seen.attentions[0].pattern.shape
    torch.Size([2, 3])
    """

    def __init__(self, streams: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self.attentions: list[Attention] = []
        self.inputs: dict[str, Tensor] = {}
        self.output: Tensor | None = None
        self._streams = streams or {}
        self._before_shift: deque[Tensor] = deque(maxlen=4)

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if function in _LARGEST and args and isinstance(args[0], Tensor):
            self._before_shift.append(args[0].detach())
        elif function in _SOFTMAX:
            self._softmax(*args, **kwargs)
        elif function is F.scaled_dot_product_attention:
            self._fused(*args, **kwargs)
        elif function is F.multi_head_attention_forward:
            # It is one function to torch, so what it calls inside would pass unseen.
            return self._whole(function, args, kwargs)
        return function(*args, **kwargs)

    def _whole(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        for role, name in ((":q", "query"), (":k", "key"), (":v", "value")):
            given[name] = self._streams.get(role, given[name])
            self.inputs.setdefault(role, given[name].detach())
        with _watched(self):
            result = function(*(given.pop(name) for name in ("query", "key", "value")), *args[3:], **given)
        self.output = result[0].detach()
        return result

    def _softmax(self, input: Tensor, dim: int = -1, *_: Any, **__: Any) -> None:
        if not input.is_floating_point() or input.ndim < 2:
            return
        logits = input.detach().movedim(dim if dim is not None else -1, -1)
        pattern = torch.softmax(logits, -1)
        # Some modules take off the largest logit against overflow; the logits are what they took it from.
        before = [raw for raw in self._before_shift if raw.shape == logits.shape and _only_shifted(raw, logits)]
        logits = before[-1] if before else logits
        self.attentions.append(Attention(logits, pattern))

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
        if enable_gqa and key.shape[-3] != query.shape[-3]:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        logits = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        masked = logits
        if is_causal:
            visible = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
            masked = masked.masked_fill(~visible, -torch.inf)
        if attn_mask is not None:
            hidden = attn_mask.dtype == torch.bool
            masked = masked.masked_fill(~attn_mask, -torch.inf) if hidden else masked + attn_mask.to(logits.dtype)
        self.attentions.append(Attention(logits, torch.softmax(masked, -1)))


def visible(logits: Tensor) -> Tensor:
    """Where a logit is a logit and not a mask's "never"."""
    return logits > _BELOW_EVERY_LOGIT


def _only_shifted(raw: Tensor, logits: Tensor) -> bool:
    """Whether each row of logits is the raw one less one number, which a softmax does not see."""
    largest, shifted = raw.amax(-1, keepdim=True), logits.amax(-1, keepdim=True)
    return bool(torch.isfinite(largest).all()) and torch.allclose(raw - largest, logits - shifted, rtol=1e-5, atol=1e-6)


@contextmanager
def _watched(capture: Capture) -> Iterator[None]:
    """Let the functions that `multi_head_attention_forward` finds in its own module report to the capture."""
    softmax, fused = F.softmax, F.scaled_dot_product_attention

    def seen_softmax(*args: Any, **kwargs: Any) -> Tensor:
        capture._softmax(*args, **kwargs)
        return softmax(*args, **kwargs)

    def seen_fused(*args: Any, **kwargs: Any) -> Tensor:
        capture._fused(*args, **kwargs)
        return fused(*args, **kwargs)

    home: Any = torch.nn.functional
    home.softmax, home.scaled_dot_product_attention = seen_softmax, seen_fused
    try:
        # The inner call must not come back here: its torch functions see no mode, and the patched names report.
        yield
    finally:
        home.softmax, home.scaled_dot_product_attention = softmax, fused
