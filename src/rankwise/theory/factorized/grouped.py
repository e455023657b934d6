"""Heads that share a factor: decay balances the group, and its nuclear norm is that of the concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.groups import concatenated
from rankwise.product.product import Product
from rankwise.theory.factorized.convention import Convention
from rankwise.theory.factorized.losses import MatrixLoss, matrix
from rankwise.theory.factorized.shrinkage import soft_threshold
from rankwise.theory.factorized.solving import State, moments, solved
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class GroupedFlow(Experiment):
    """What gradient flow with decay does to heads `A_g R` that share `R`.

    Arguments:
        imbalance: `D = sum_g A_g^T A_g - R R^T`, decaying as `exp(-2 lam t)`, beside the flow's.
        single: the imbalance of the first head alone if the law held for it: it does not, and this must disagree.
        times: of the flow.
        factors: at the end, `A [G, m, r]` and `R`.
    """

    imbalance: SideBySide
    single: SideBySide
    times: Float[Tensor, " n"] = field(kw_only=True, repr=False)
    factors: tuple[Tensor, Tensor] = field(kw_only=True, repr=False)


def grouped_flow(
    losses: Sequence[MatrixLoss],
    left: Float[Tensor, "G m r"],
    right: Float[Tensor, "r n"],
    *,
    decay: float,
    until: float,
    points: int = 51,
) -> GroupedFlow:
    """Gradient flow of heads that share a factor, each with a loss of its own, beside the law of their group.

    >>> losses = [MatrixLoss.rugged((3, 4), seed=seed) for seed in (0, 1)]
    >>> generator = torch.Generator().manual_seed(2)
    >>> start = torch.randn(2, 3, 2, generator=generator), torch.randn(2, 4, generator=generator)
    >>> law = grouped_flow(losses, *start, decay=0.2, until=3.0)
    >>> law.imbalance.relative_error < 1e-8, law.single.relative_error > 0.1
    (True, True)
    """
    a, r = left.detach().double(), right.detach().double()
    if a.ndim != 3 or len(a) != len(losses) or any(one.shape != (a.shape[1], r.shape[1]) for one in losses):
        raise UserError(
            f"{len(losses)} losses were given for left factors of shape {tuple(a.shape)} and a shared right one of "
            f"{tuple(r.shape)}: give [heads, m, r], [r, n] and a loss of m x n for each head"
        )
    pressure = Convention.HALVED.pressure(decay)
    times = moments(until, points)

    def slope(factors: State) -> State:
        a, r = factors
        products = a @ r
        gradient = torch.stack([one.gradient(product) for one, product in zip(losses, products, strict=True)])
        return -gradient @ r.mT - pressure * a, -(a.mT @ gradient).sum(0) - pressure * r

    a, r = solved(slope, (a, r), times)
    grams, shared = a.mT @ a, r @ r.mT
    shrinking = (-2 * pressure * times).exp()[:, None, None]
    group, single = grams.sum(1) - shared, grams[:, 0] - shared
    return GroupedFlow(
        SideBySide(group[0] * shrinking, simulated=group),
        SideBySide(single[0] * shrinking, simulated=single),
        times=times,
        factors=(a[-1], r[-1]),
    )


@dataclass(frozen=True)
class GroupedEquilibrium(Experiment):
    """Where heads that share a factor end.

    Arguments:
        values: of the concatenation `[A_1; ...; A_G] R`: the soft-thresholded ones of the targets', beside the trained.
        penalty: the nuclear norm of the concatenation, beside the half-sum of squared norms.
        single_grams: the shared factor's Gram matrix, beside that of the first head alone: not equal.
        heads_alone: the sum of the heads' own nuclear norms, which decay would charge if they shared nothing.
    """

    values: SideBySide
    penalty: SideBySide
    single_grams: SideBySide
    heads_alone: float = field(kw_only=True)


def grouped_equilibrium(
    targets: Float[Tensor, "G m n"], *, decay: float, rank: int, until: float = 200.0, start: float = 0.5, seed: int = 0
) -> GroupedEquilibrium:
    """Train `A_g R` towards a target each, with decay, until nothing moves; the concatenation is what decay sees.

    >>> generator = torch.Generator().manual_seed(0)
    >>> found = grouped_equilibrium(torch.randn(2, 4, 4, generator=generator), decay=0.5, rank=4)
    >>> found.values.error < 1e-6, found.penalty.error < 1e-6, found.single_grams.error > 0.1
    (True, True, True)
    """
    wanted = torch.as_tensor(targets).detach().double()
    if wanted.ndim != 3:
        raise UserError(f"targets of shape {tuple(wanted.shape)} were given: give one for each head, [heads, m, n]")
    losses = [MatrixLoss.denoising(matrix(one, "a target")) for one in wanted]
    generator = torch.Generator().manual_seed(seed)
    left, right = (
        start * torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((*wanted.shape[:2], rank), (rank, wanted.shape[2]))
    )
    a, r = grouped_flow(losses, left, right, decay=decay, until=until, points=2).factors
    whole = concatenated(Product(a, r[None]), 0)
    values = torch.linalg.svdvals(whole.dense())[:rank]
    aims = torch.linalg.svdvals(wanted.reshape(-1, wanted.shape[2]))[:rank]
    grams = a.mT @ a
    return GroupedEquilibrium(
        SideBySide(soft_threshold(aims, decay), simulated=values),
        SideBySide(values.sum(), simulated=(grams.diagonal(dim1=-2, dim2=-1).sum() + r.square().sum()) / 2),
        SideBySide(r @ r.mT, simulated=grams[0]),
        heads_alone=float(torch.linalg.svdvals(a @ r).sum()),
    )
