"""The second proof: moves of the factors that leave the product alone leave the module alone, and others do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from rankwise.sites.certify.certificates import Proof
from rankwise.sites.certify.draws import Draws
from rankwise.sites.certify.prediction import query_side, rotated
from rankwise.sites.factor import Factor
from rankwise.sites.site import Site


def prove_gauge(site: Site, others: Sequence[Site], draws: Draws, tolerance: float) -> Proof:
    """Move the factors on both sides of the head by inverse maps, and see that the module's output stays.

    It must not stay where only one side moves, or where a move mixes what a rotary embedding keeps apart.

    Arguments:
        site: the site to prove.
        others: the other sites of the module, which may share its factors.
        draws: replays of its module.
        tolerance: the largest change that passes, relative to the largest output.
    """
    if (reason := _no_gauge(site, others)) is not None:
        return Proof.absent(reason)
    draw = draws.take(1)[0]

    def change(left: Tensor, right: Tensor) -> float:
        with _moved(site, draws.replay.source, left, right):
            moved = draws.replay.run(draw.streams).result
        return float((moved - draw.run.result).abs().max() / draw.run.result.abs().max().clamp_min(1e-30))

    shape = _gauge_shape(site, draws)
    inside = _commuting(site, shape, draws.replay.dtype)
    inverse = torch.linalg.inv(inside)
    error = change(inside, inverse)
    if error != error:
        return Proof.absent("the module's output is not finite on these inputs")
    if error > tolerance:
        return Proof("failed", error, tolerance, "a move that keeps the product changes the output")
    least = change(inside, torch.eye(shape[-1], dtype=inside.dtype).expand(shape))
    if least <= 10 * tolerance:
        return Proof("failed", error, tolerance, f"moving one side alone changes the output by {least:.1e} only")
    if site.attention is not None and site.attention.rotary is not None:
        outside = _general(shape, draws.replay.dtype)
        least = change(outside, torch.linalg.inv(outside))
        if least <= 10 * tolerance:
            return Proof(
                "failed", error, tolerance, "a move that mixes rotary pairs leaves the output: nothing turns here"
            )
        return Proof.of(error, tolerance, "per rotary pair")
    return Proof.of(error, tolerance, f"GL({shape[-1]})")


def _no_gauge(site: Site, others: Sequence[Site]) -> str | None:
    if site.attention is not None and site.attention.norm is not None and site.kind == "qk":
        return "queries and keys are normalized: only rotations and signs would be a gauge"
    positions = (query_side(site) - 1, query_side(site))
    theirs = [factor for other in others if other.kind != site.kind for factor in other.factors]
    if any(_same(site.factors[position], factor) for position in positions for factor in theirs):
        return "another product of the module uses the same factor"
    if any(site.gains[position] is not None for position in positions if site.gains):
        return "a gain stands between the factors"
    return None


def _same(one: Factor, two: Factor) -> bool:
    return (one.parameter, one.rows, one.take) == (two.parameter, two.rows, two.take)


def _gauge_shape(site: Site, draws: Draws) -> tuple[int, ...]:
    """One map for each matrix that both factors have to themselves: heads that share a factor share its map."""
    middle = query_side(site)
    left, right = (
        site.factors[at].view(draws.replay.source[site.factors[at].parameter]) for at in (middle - 1, middle)
    )
    batch = [min(one, two) for one, two in zip(left.shape[:-2], right.shape[:-2], strict=True)]
    return (*batch, right.shape[-2], right.shape[-2])


def _general(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Well-conditioned maps that mix everything: a random rotation, stretched by up to two."""
    generator = torch.Generator().manual_seed(7)
    rotation = torch.linalg.qr(torch.randn(shape, generator=generator, dtype=torch.float64)).Q
    stretch = 0.7 + 0.7 * torch.rand(shape[:-1], generator=generator, dtype=torch.float64)
    return (rotation * stretch[..., None, :]).to(dtype)


def _commuting(site: Site, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Maps that a rotary embedding commutes with: any on what stands still, a turn and a stretch of each pair."""
    facts = site.attention
    pairs, still = rotated(facts.rotary if facts is not None and site.kind == "qk" else None, shape[-1])
    maps = torch.zeros(shape, dtype=dtype)
    if len(still):
        maps[..., still[:, None], still] = _general((*shape[:-2], len(still), len(still)), dtype)
    generator = torch.Generator().manual_seed(8)
    for one, two in pairs.tolist():
        size = 0.7 + 0.7 * torch.rand(shape[:-2], generator=generator, dtype=torch.float64)
        angle = 6.28 * torch.rand(shape[:-2], generator=generator, dtype=torch.float64)
        maps[..., one, one] = maps[..., two, two] = (size * angle.cos()).to(dtype)
        maps[..., two, one] = (size * angle.sin()).to(dtype)
        maps[..., one, two] = -maps[..., two, one]
    return maps


@contextmanager
def _moved(site: Site, source: dict[str, Tensor], left: Tensor, right: Tensor) -> Iterator[None]:
    """The left factor times `left` and the right one behind `right`, biases too; put back exactly afterwards."""
    middle = query_side(site)
    moves: list[tuple[Factor, Callable[[Tensor], Tensor]]] = [
        (site.factors[middle - 1], lambda factor: factor @ left.to(factor)),
        (site.factors[middle], lambda factor: right.to(factor) @ factor),
    ]
    if site.kind == "qk":
        moves += [(bias, lambda added: added @ left.to(added)) for bias in site.added(middle - 1)]
    moves += [(bias, lambda added: right.to(added) @ added) for bias in site.added(middle)]
    kept = {factor.parameter: source[factor.parameter].clone() for factor, _ in moves}
    try:
        for factor, move in moves:
            view = factor.view(source[factor.parameter])
            moved = move(view)
            assert moved.shape == view.shape, f"a gauge of {tuple(left.shape)} on a factor of {tuple(view.shape)}"
            view.copy_(moved)
        yield
    finally:
        for name, tensor in kept.items():
            source[name].copy_(tensor)
