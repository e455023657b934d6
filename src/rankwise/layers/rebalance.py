"""Rebalance the products of a live model in place, its function unchanged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from rankwise.errors import UserError
from rankwise.layers.base import FactorizedLayer
from rankwise.layers.gauges import Gauge, NoGauge, Normalized, Shares, added_to, gauge_of, grouped
from rankwise.layers.optimizer_state import SecondMoments, State, move_state, summary
from rankwise.layers.readers import Readers
from rankwise.layers.rebalance_cores import balance_cores
from rankwise.layers.rebalanced import LeftAlone, Moved, Rebalanced
from rankwise.layers.touch import Touch
from rankwise.product.guarded import NOT_FINITE
from rankwise.product.product import Product
from rankwise.product.triangular import reduce
from rankwise.sites.certify.certificates import Certificate, Certificates
from rankwise.sites.find import find
from rankwise.sites.singles import core_of
from rankwise.sites.site import Site
from rankwise.sites.sites import Sites


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What is to be done at one site, computed before anything is written."""

    site: Site
    gauge: Gauge
    touches: tuple[Touch, ...]
    before: Shares


@torch.no_grad()
def balance_(
    target: nn.Module | Sites | Certificates,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    inputs: Mapping[str, Any] | None = None,
    second_moments: SecondMoments = "reset",
    normalized: Normalized = "leave",
) -> Rebalanced:
    """Share every product of a live model evenly between its factors, in place; the network's function stays.

    Where any matrix may go between two factors, afterwards `A^T A = B B^T`, and the half-sum of their squared norms has
    fallen to the nuclear norm: ordinary decay falls by exactly `lambda` times the gap. Heads that share a factor share
    its move; rotary queries and keys get one scale for each frequency, and a matrix on the dimensions that do not turn;
    chains, and the cores of tensorized layers, are balanced at every junction. Biases move with their factors.
    Attention is moved only where a proof on the live module showed that such a move leaves it alone, and what two sites
    (or two modules) use is never touched.

    Arguments:
        target: the model; or some of its sites (`find(model).select(...)`); or the certificates of its sites, where
            `certify` has run already.
        optimizer: its memory of the moved parameters is moved along, or reset where it cannot follow; see
            `move_state`. Without it an optimizer goes on with means of gradients in the old gauge.
        inputs: keyword arguments of the model's forward, for the proofs; made up from its configuration by default.
        second_moments: what to do with means of squared gradients that cannot follow exactly: "reset" drops the
            parameter's state, "estimate" carries them over as if the entries of a gradient were uncorrelated.
        normalized: "leave" or "scale" queries and keys that are normalized. Only their scale is free, and the norm's
            epsilon feels it.

    Returns:
        what was done at each site, and what was left alone and why; it prints as a table.

    >>> from rankwise.layers.linear import FactorizedLinear
    >>> layer = FactorizedLinear(8, 6, rank=3, bias=False)
    >>> layer.factors[0].data *= 10; layer.factors[1].data /= 10
    >>> record = balance_(torch.nn.Sequential(layer))
    >>> record["0.linear"].gauge, record["0.linear"].before.relative > 0.9, record["0.linear"].after.relative < 1e-10
    ('a matrix', True, True)
    """
    if second_moments not in get_args(SecondMoments) or normalized not in get_args(Normalized):
        raise UserError(
            f"second_moments is 'reset' or 'estimate' and normalized is 'leave' or 'scale', got {second_moments!r} and "
            f"{normalized!r}"
        )
    sites, model, certificates = _resolved(target, inputs)
    tensors = dict(model.named_parameters(remove_duplicate=False))
    _check_tensors(tensors)
    readers = Readers(model, tensors, find(model))
    plans: list[_Plan] = []
    left_alone: list[LeftAlone] = []
    for site in sites:
        if len(site.factors) == 1:
            continue  # a matrix has no junction
        try:
            plans.append(_plan(site, model, readers, certificates.get(site.name), normalized))
        except NoGauge as reason:
            left_alone.append(LeftAlone(site.name, str(reason)))
    written = [_write(plan, tensors) for plan in plans]
    states = _carried(plans, tensors, optimizer, second_moments)
    moved = [replace(each, state=states.get(each.site)) for each in written]
    unread = sites.unread
    if isinstance(target, nn.Module):
        cores, others = balance_cores(model, readers, optimizer)
        moved, left_alone = moved + cores, left_alone + others
        unread = tuple(each for each in unread if core_of(each.parameter) is None)
    return Rebalanced(tuple(moved), left_alone=tuple(left_alone), unread=unread)


def _resolved(
    target: nn.Module | Sites | Certificates, inputs: Mapping[str, Any] | None
) -> tuple[Sites, nn.Module, Mapping[str, Certificate]]:
    """The sites, the live model that they were found in, and the certificates of its attention."""
    if isinstance(target, nn.Module):
        target = find(target)
    sites = target.sites if isinstance(target, Certificates) else target
    if not isinstance(sites, Sites):
        raise UserError(f"balance_ takes a model, its sites or its certificates, got {type(target).__name__}")
    model = sites.source
    if not isinstance(model, nn.Module):
        raise UserError(
            "balance_ needs the live model, where a move can be proved to leave its function alone: load the weights "
            f"into it and give it (or find(model)), not sites found in a {type(model).__name__}"
        )
    if isinstance(target, Certificates):
        return sites, model, target
    attention = any(site.attention is not None for site in sites)
    return sites, model, sites.certify(model, inputs) if attention else {}


def _check_tensors(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.device.type == "meta":
            raise UserError(f"'{name}' is on the meta device: it has a shape and no values, load the weights first")
        if hasattr(tensor, "placements"):
            raise UserError(
                f"'{name}' is sharded over a device mesh: rebalance the model before it is sharded, or gather it first"
            )


def _plan(
    site: Site, model: nn.Module, readers: Readers, certificate: Certificate | None, normalized: Normalized
) -> _Plan:
    gauge = gauge_of(site, certificate, normalized=normalized)
    if site.layout == "factorized layer" and not _is_ours(model, site):
        raise NoGauge("its names are those of a factorized layer, but its module is none: something may stand between")
    biases = [added_to(site, at, left=at == gauge.positions[0]) for at in gauge.positions]
    moved = [factor for at, added in zip(gauge.positions, biases, strict=True) for factor in (site.factors[at], *added)]
    readers.refuse(site, moved)
    product, spread = grouped(site, _views(site, gauge, readers.tensors))
    if not all(bool(factor.isfinite().all()) for factor in product.factors):
        raise NoGauge(NOT_FINITE)
    moves = gauge.moves(product)
    if not any(bool(move.live.any()) for move in moves):
        raise NoGauge("the product is zero: a move would shrink what one factor has to nothing")
    touches: list[Touch] = []
    for place, (position, added) in enumerate(zip(gauge.positions, biases, strict=True)):
        before, after = (spread(moves[at]) if 0 <= at < len(moves) else None for at in (place - 1, place))
        touches.append(Touch(factor=site.factors[position], before=before, after=after))
        # A query's bias is a row in front of the junction, every other one a column behind it.
        side = {"after": after} if place == 0 else {"before": before}
        touches += [Touch(factor=bias, **side) for bias in added]
    if not all(touch.fits(readers.tensors[touch.factor.parameter]) for touch in touches):
        raise NoGauge("heads that share a bias do not share the weight beside it")
    return _Plan(site=site, gauge=gauge, touches=tuple(touches), before=gauge.shares(product))


def _is_ours(model: nn.Module, site: Site) -> bool:
    # Its parameters are `path.factors.0`, or `factors.0` where the model itself is the layer.
    path = ".".join(site.parameters[0].split(".")[:-2])
    return isinstance(model.get_submodule(path), FactorizedLayer)


def _views(site: Site, gauge: Gauge, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    factors = (site.factors[position] for position in gauge.positions)
    return [factor.view(tensors[factor.parameter].detach()) for factor in factors]


def _write(plan: _Plan, tensors: Mapping[str, Tensor]) -> Moved:
    """Carry a plan out and measure what it did to the stored product."""
    views = _views(plan.site, plan.gauge, tensors)
    start = Product(*(view.clone() for view in views))
    for touch in plan.touches:
        touch.move(tensors[touch.factor.parameter])
    product, _ = grouped(plan.site, views)
    return Moved(
        site=plan.site.name,
        gauge=plan.gauge.name,
        before=plan.before,
        after=plan.gauge.shares(product),
        change=_relative_change(Product(*views), start),
        state=None,
        note=plan.gauge.note,
    )


def _relative_change(end: Product, start: Product) -> float:
    """`|P' - P|_F / |P|_F`, the largest of a stack, by QR: Grams would see no difference below the root of rounding."""
    norms = []
    for product in (end - start, start):
        left, right = reduce(product.to(torch.float64))
        norms.append(torch.linalg.matrix_norm(left @ right.mT))
    return (norms[0] / norms[1].clamp_min(torch.finfo().tiny)).max().item()


def _carried(
    plans: Iterable[_Plan],
    tensors: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer | None,
    second_moments: SecondMoments,
) -> dict[str, State]:
    """Move gradients and the optimizer's memory, parameter by parameter, and say for each site how that went."""
    touches: dict[str, list[tuple[str, Touch]]] = defaultdict(list)
    for plan in plans:
        for touch in plan.touches:
            touches[touch.factor.parameter].append((plan.site.name, touch))
    states: dict[str, list[State]] = defaultdict(list)
    for name, members in touches.items():
        parameter = tensors[name]
        if parameter.grad is not None:
            for _, touch in members:
                touch.move_gradient(parameter.grad)
        if optimizer is not None:
            state = move_state(optimizer, parameter, [touch for _, touch in members], second_moments=second_moments)
            for site, _ in members:
                states[site].append(state)
    return {site: summary(each) for site, each in states.items()}
