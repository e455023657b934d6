"""QK-clip: scale queries and keys down where the logits of their head grew too large."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from rankwise.decay.controls.base import ProductControl
from rankwise.decay.controls.logits import LargestLogits, largest_of_all
from rankwise.decay.products import LiveProduct, listed
from rankwise.errors import UserError
from rankwise.sites.factor import Factor
from rankwise.sites.site import Site
from rankwise.sites.sites import Sites


class QKClip(ProductControl):
    """Where the largest logit `S` that was seen of a head exceeds the threshold `t`, scale its product by `t / S`.

    Kimi's QK-clip (2025): queries and keys take the root of it each, biases included, so that balance is kept; rotary
    embeddings do not mind. Keys that a group of heads shares take the root of the geometric mean of the group's
    factors, and each head's queries the rest, so that every head's product is scaled by exactly its own factor.

    The logits are seen while the model runs: attached, in every forward pass; otherwise inside `with clip.observed():`.
    In distributed training the largest over all processes counts, so that all of them clip alike.

    Arguments:
        sites: sites of kind "qk" of a live model.
        threshold: the largest logit that is left alone.
        model: the live module; the one that the sites were found in by default.
    """

    def __init__(self, sites: Sites, *, threshold: float = 100.0, model: nn.Module | None = None) -> None:
        if not 0 < threshold < float("inf"):
            raise UserError(f"threshold must be a positive number, got {threshold}")
        super().__init__(sites, model=model)
        source = model if model is not None else sites.source
        others = [site.name for site in sites if site.kind != "qk" or site.attention is None or len(site.factors) != 2]
        if others:
            raise UserError(
                f"{listed(others)} has no logits of its own: QKClip takes sites of kind 'qk' of two factors"
            )
        capped = [site.name for site in sites if site.attention and 0 < (site.attention.softcap or 0) <= threshold]
        if capped:
            warnings.warn(
                f"threshold={threshold:g} has no effect on {listed(capped)}: their logits are capped below it",
                stacklevel=2,
            )
        self.threshold = threshold
        self._source = source
        self._logits = LargestLogits({site.name: (source.get_submodule(_module(site)), site.heads) for site in sites})

    @property
    def largest_logits(self) -> dict[str, Tensor]:
        """The largest logit of every head since the last clip, by site, as this process has seen them."""
        return dict(self._logits.values)

    @contextmanager
    def observed(self) -> Iterator[Self]:
        """Look at the logits of every forward pass inside."""
        self._logits.start()
        try:
            yield self
        finally:
            self._logits.stop()

    def attach(self, optimizer: Any, *, every: int = 1) -> Self:
        super().attach(optimizer, every=every)
        self._logits.start()
        return self

    def detach(self) -> None:
        super().detach()
        self._logits.stop()

    @torch.no_grad()
    def apply(self, rate: float = 1.0) -> None:
        unseen = [live.name for live in self.products if live.name not in self._logits.values]
        if unseen:
            raise UserError(
                f"no logits were seen of {listed(unseen)}: run the model with the control attached or inside "
                "observed(), with attention that calls softmax or scaled_dot_product_attention, and not compiled"
            )
        seen = largest_of_all([self._logits.values[live.name] for live in self.products])
        for live, largest in zip(self.products, seen, strict=True):
            factor = torch.where(largest > self.threshold, self.threshold / largest, 1.0)
            self._scale(live, torch.where(factor.isfinite(), factor, 1.0))
        self._logits.empty()

    def _scale(self, live: LiveProduct, factor: Tensor) -> None:
        site = live.site
        assert site is not None
        query, key = live.views()
        batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        factor = factor.reshape(batch).to(query.device)
        shared = [axis for axis in range(len(batch)) if key.shape[axis] == 1 < batch[axis]]
        of_key = factor.log().mean(shared, keepdim=True).exp().sqrt() if shared else factor.sqrt()
        for position, scale in ((0, factor / of_key), (1, of_key)):
            scale = scale[..., None, None]
            live.views()[position].mul_(scale)
            for bias in site.added(position):
                self._view(bias).mul_(scale)

    def _view(self, bias: Factor) -> Tensor:
        path, _, last = bias.parameter.rpartition(".")
        return bias.view(getattr(self._source.get_submodule(path), last).detach())


def _module(site: Site) -> str:
    assert site.attention is not None
    return site.attention.module
