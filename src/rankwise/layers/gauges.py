"""Which moves of its factors a site allows without changing the network, and the balance that they can reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.balance import balance
from rankwise.product.chain_balance import chain_balance
from rankwise.product.groups import concatenated
from rankwise.product.moves import Move, balancing_moves, pair_move, scale_move
from rankwise.product.pairs import pair_balance
from rankwise.product.product import Product
from rankwise.sites.certify.certificates import Certificate
from rankwise.sites.certify.prediction import query_side
from rankwise.sites.factor import Factor
from rankwise.sites.site import Site

Normalized = Literal["leave", "scale"]


class NoGauge(Exception):
    """A site cannot be moved; the text says why."""


@dataclass(frozen=True)
class Shares:
    """What decay charges the factors of a site, and how much of it no gauge can take away, summed over the stack."""

    half_sum: float
    gap: float

    @property
    def relative(self) -> float:
        """The gap over the half-sum, 0 for factors that are zero."""
        return self.gap / self.half_sum if self.half_sum else 0.0


@dataclass(frozen=True, kw_only=True)
class Gauge:
    """The moves that one site allows.

    Arguments:
        name: what they are, for people.
        positions: the neighbouring factors between which they go, from left to right.
        moves: from the factors (grouped heads concatenated) the moves, one for each junction.
        shares: from the same factors how evenly they share their product under these moves.
        note: what a reader of the result should know.
    """

    name: str
    positions: tuple[int, ...]
    moves: Callable[[Product], tuple[Move, ...]]
    shares: Callable[[Product], Shares]
    note: str = ""


def gauge_of(site: Site, certificate: Certificate | None, *, normalized: Normalized) -> Gauge:
    """The moves that a site allows, or `NoGauge` with the reason why there are none.

    Arguments:
        site: the site.
        certificate: what was proved of it on the live model, where it is attention.
        normalized: "scale" allows to scale queries and keys in front of their normalization.
    """
    if site.attention is None:
        return _chain(site)
    if certificate is None:
        raise NoGauge("attention is moved only where a move was proved on the live module: certify it")
    if site.kind == "qk" and site.attention.norm is not None:
        return _normalized(site, certificate, normalized)
    if certificate.gauge.status != "passed":
        reason = certificate.reason or f"gauge proof {certificate.gauge}"
        raise NoGauge(f"no move was proved to leave the module alone: {reason}")
    if not certificate.passed:
        raise NoGauge(f"the site is not certified: {certificate.reason}")
    middle = query_side(site)
    note = (
        "only at the heads' own junction: at the chain's others (latents, inner factors) no move was proved"
        if len(site.factors) > 2
        else ""
    )
    if site.attention.rotary is not None and site.kind == "qk":
        pairs = site.attention.rotary.index()
        return Gauge(
            name="a scale per pair",
            positions=(middle - 1, middle),
            moves=lambda product: (pair_move(product, pairs),),
            shares=lambda product: _pair_shares(product, pairs),
            note=note,
        )
    return Gauge(
        name="a matrix",
        positions=(middle - 1, middle),
        moves=balancing_moves,
        shares=_two_shares,
        note=note,
    )


def grouped(site: Site, factors: Sequence[Tensor]) -> tuple[Product, Callable[[Move], Move]]:
    """The factors as the one product that a gauge move acts on, and how its moves broadcast to the single heads.

    Heads that share a factor share its move: along such an axis the others are stacked beside one another.
    """
    product = Product(*factors)
    if product.depth > 2:
        return product, lambda move: move
    axes = [axis for axis, sizes in enumerate(_batches(product)) if len(set(sizes)) > 1]
    for axis in reversed(axes):
        try:
            product = concatenated(product, axis)
        except UserError as error:
            raise NoGauge(str(error)) from None
    batches = {tuple(factor.shape[:-2]) for factor in product.factors}
    if len(batches) > 1:
        raise NoGauge(f"its heads share both factors, along different axes: {site.batch}")

    def spread(move: Move) -> Move:
        matrix, inverse = move.matrix, move.inverse
        for axis in axes:
            matrix, inverse = matrix.unsqueeze(axis), inverse.unsqueeze(axis)
        return replace(move, matrix=matrix, inverse=inverse)

    return product, spread


def added_to(site: Site, position: int, *, left: bool) -> tuple[Factor, ...]:
    """The biases that move with a factor: on the left side of a junction only those of queries."""
    return () if left and site.kind != "qk" else site.added(position)


def _batches(product: Product) -> list[tuple[int, ...]]:
    """For each batch axis the sizes that the factors have there."""
    dimensions = len(product.batch_shape)
    padded = [(1,) * (dimensions + 2 - factor.ndim) + tuple(factor.shape[:-2]) for factor in product.factors]
    return list(zip(*padded, strict=True))


def _chain(site: Site) -> Gauge:
    """Adapters and factorized layers: nothing stands between their factors, so that any matrix may."""
    positions = tuple(range(len(site.factors)))
    return Gauge(
        name="a matrix",
        positions=positions,
        moves=balancing_moves,
        shares=_two_shares if len(positions) == 2 else _chain_shares,
    )


def _normalized(site: Site, certificate: Certificate, normalized: Normalized) -> Gauge:
    facts = site.attention
    assert facts is not None
    assert facts.norm is not None
    if certificate.value.status != "passed":
        raise NoGauge(f"queries and keys are normalized, and no proof reproduced their logits: {certificate.value}")
    if normalized == "leave":
        raise NoGauge(
            "queries and keys are normalized: only their scale is free, up to the norm's epsilon, and decay does not "
            "press on their rank; normalized='scale' scales them"
        )
    middle = query_side(site)
    whole = facts.norm.over == "width"
    return Gauge(
        name="one scale" if whole else "a scale per head",
        positions=(middle - 1, middle),
        moves=lambda product: (_one_scale(product) if whole else scale_move(product),),
        shares=lambda product: _scale_shares(product, whole=whole),
        note="its queries and keys are normalized: the function stays up to the norm's epsilon",
    )


def _one_scale(product: Product) -> Move:
    """One number for all heads: where a norm goes over the whole width, heads must keep their shares of it."""
    stacked = Product(
        *(
            factor.flatten()[None] if place else factor.flatten()[:, None]
            for place, factor in enumerate(product.factors)
        )
    )
    move = scale_move(stacked)
    eye = torch.eye(product.widths[1], dtype=torch.float64, device=product.device)
    batch = (*product.batch_shape, *eye.shape)
    matrix, inverse = ((eye * one).expand(batch) for one in (move.matrix.squeeze(), move.inverse.squeeze()))
    live = move.live.expand(product.batch_shape) * product.widths[1]
    return Move(matrix, inverse=inverse, live=live, stretch=move.stretch.expand(product.batch_shape))


def _two_shares(product: Product) -> Shares:
    found = balance(product)
    return Shares(found.half_sum.sum().item(), found.gap.sum().item())


def _chain_shares(product: Product) -> Shares:
    found = chain_balance(product)
    half = product.depth / 2
    return Shares(half * found.mean_square.sum().item(), half * found.gap.sum().item())


def _pair_shares(product: Product, pairs: Tensor) -> Shares:
    found = pair_balance(product, pairs)
    return Shares(found.half_sum.sum().item(), found.gap.sum().item())


def _scale_shares(product: Product, *, whole: bool) -> Shares:
    squares = torch.stack([factor.double().square().sum((-2, -1)) for factor in product.factors])
    if whole:
        squares = squares.flatten(1).sum(1)
    norms = squares.sqrt()
    return Shares(squares.sum().item() / 2, (norms[0] - norms[1]).square().sum().item() / 2)
