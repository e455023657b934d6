"""Rotary queries and keys: decay balances each frequency, not the head, and its norm is the pair sum."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.pairs import RotaryPairs, pair_balance
from rankwise.product.product import Product
from rankwise.theory.factorized.convention import Convention
from rankwise.theory.factorized.losses import matrix
from rankwise.theory.factorized.solving import State, minimized, moments, solved
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class RotaryHead:
    """A toy that a rotary head learns: logits between tokens at their positions, by squared error.

        logit_ij = x_i^T W_Q^T Rot(theta (j - i)) W_K x_j,    L = mean (logit - target)^2 / 2.

    Arguments:
        tokens: `x`, one row for each position.
        targets: the logits to learn.
        pairs: which dimensions turn together.
        base: of the frequencies, `base^(-2 p / rotated)`.
    """

    tokens: Float[Tensor, "t m"] = field(repr=False)
    targets: Float[Tensor, "t t"] = field(kw_only=True, repr=False)
    pairs: RotaryPairs = field(kw_only=True)
    base: float = field(kw_only=True, default=100.0)

    def __post_init__(self) -> None:
        count = len(matrix(self.tokens, "the tokens"))
        if matrix(self.targets, "the targets").shape != (count, count):
            raise UserError(
                f"targets of shape {tuple(self.targets.shape)} were given for {count} tokens: give {count}x{count}"
            )

    def logits(self, left: Float[Tensor, "m r"], right: Float[Tensor, "r m"]) -> Float[Tensor, "t t"]:
        """What the head's queries `left = W_Q^T` and keys `right = W_K` give."""
        tokens = self.tokens.double()
        return self.turned(tokens @ left) @ self.turned(tokens @ right.mT).mT

    def loss(self, left: Float[Tensor, "m r"], right: Float[Tensor, "r m"]) -> Tensor:
        """The mean squared error of the logits, halved."""
        return (self.logits(left, right) - self.targets.double()).square().mean() / 2

    def turned(self, states: Float[Tensor, "t r"]) -> Float[Tensor, "t r"]:
        """Queries or keys, turned by their positions."""
        index = self.pairs.indices(states.shape[-1])
        frequencies = self.base ** (-torch.arange(len(index), dtype=torch.float64) / len(index))
        angles = torch.arange(len(states), dtype=torch.float64)[:, None] * frequencies
        one, two = states[:, index[:, 0]], states[:, index[:, 1]]
        moved = torch.cat([one * angles.cos() - two * angles.sin(), one * angles.sin() + two * angles.cos()], 1)
        return states.index_copy(1, index.mT.flatten(), moved)


@dataclass(frozen=True)
class RotaryFlow(Experiment):
    """What gradient flow with decay does to a rotary head.

    Arguments:
        pairs: `|Q_p|_F^2 - |K_p|_F^2` of every frequency, decaying as `exp(-2 lam t)`, beside the flow's.
        whole: the law of heads without rotation, for the full `A^T A - R R^T`: it must disagree.
        unrotated: the same law for the dimensions that do not turn, for which it holds; empty where all do.
        times: of the flow.
    """

    pairs: SideBySide
    whole: SideBySide
    unrotated: SideBySide
    times: Float[Tensor, " n"] = field(kw_only=True, repr=False)


def rotary_flow(
    head: RotaryHead,
    left: Float[Tensor, "m r"],
    right: Float[Tensor, "r m"],
    *,
    decay: float,
    until: float,
    points: int = 51,
) -> RotaryFlow:
    """Gradient flow of rotary queries and keys with decay, beside the law of each frequency.

    The loss is not a function of the product `W_Q^T W_K`. Of all changes of basis within the head only a scale and a
    turn of each pair leave it alone, so only one number for each pair obeys the law.

    >>> generator = torch.Generator().manual_seed(0)
    >>> tokens, targets, left, right = (torch.randn(*shape, generator=generator).double()
    ...                                 for shape in ((6, 4), (6, 6), (4, 4), (4, 4)))
    >>> head = RotaryHead(tokens, targets=targets, pairs=RotaryPairs("half"))
    >>> law = rotary_flow(head, left, right, decay=0.1, until=4.0)
    >>> law.pairs.relative_error < 1e-8, law.whole.relative_error > 0.1
    (True, True)
    """
    a, r = matrix(left, "the left factor"), matrix(right, "the right factor")
    pressure = Convention.HALVED.pressure(decay)
    times = moments(until, points)
    gradients = torch.func.grad(head.loss, argnums=(0, 1))

    def slope(factors: State) -> State:
        by_left, by_right = gradients(*factors)
        return -by_left - pressure * factors[0], -by_right - pressure * factors[1]

    a, r = solved(slope, (a, r), times)
    shrinking = (-2 * pressure * times).exp()
    by_pair = pair_balance(Product(a, r), head.pairs)
    whole = a.mT @ a - r @ r.mT
    turning = head.pairs.indices(a.shape[-1]).flatten()
    still = torch.ones(a.shape[-1], dtype=torch.bool).index_fill(0, turning, False)
    rest = whole[:, still][:, :, still]
    return RotaryFlow(
        SideBySide(by_pair.imbalance[0] * shrinking[:, None], simulated=by_pair.imbalance),
        SideBySide(whole[0] * shrinking[:, None, None], simulated=whole),
        SideBySide(rest[0] * shrinking[:, None, None], simulated=rest),
        times=times,
    )


@dataclass(frozen=True)
class RotaryEquilibrium(Experiment):
    """A stationary point of a rotary head with decay.

    Arguments:
        penalty: the pair sum `sum_p |Q_p|_F |K_p|_F`, beside the half-sum of squared norms.
        nuclear: the nuclear norm of `W_Q^T W_K`, which is smaller: the wrong norm to check.
        residual: the largest entry of the gradient.
        strengths: of the frequencies; the pair sum is a group lasso on them.
    """

    penalty: SideBySide
    nuclear: float = field(kw_only=True)
    residual: float = field(kw_only=True)
    strengths: Float[Tensor, " pairs"] = field(kw_only=True)


def rotary_equilibrium(
    head: RotaryHead, left: Float[Tensor, "m r"], right: Float[Tensor, "r m"], *, decay: float
) -> RotaryEquilibrium:
    """Train a rotary head with decay to a stationary point, where every frequency is shared evenly.

    >>> generator = torch.Generator().manual_seed(0)
    >>> tokens, targets, left, right = (torch.randn(*shape, generator=generator).double()
    ...                                 for shape in ((6, 4), (6, 6), (4, 4), (4, 4)))
    >>> head = RotaryHead(tokens, targets=targets, pairs=RotaryPairs("half"))
    >>> found = rotary_equilibrium(head, left, right, decay=0.02)
    >>> found.penalty.error < 1e-6, found.nuclear < 0.9 * found.penalty.predicted.item()
    (True, True)
    """
    pressure = Convention.HALVED.pressure(decay)
    start = matrix(left, "the left factor"), matrix(right, "the right factor")

    def charged(factors: State) -> Tensor:
        a, r = factors
        return head.loss(a, r) + pressure / 2 * (a.square().sum() + r.square().sum())

    (a, r), residual = minimized(charged, start)
    found = pair_balance(Product(a, r), head.pairs)
    return RotaryEquilibrium(
        SideBySide(found.pair_sum, simulated=found.half_sum),
        nuclear=float(torch.linalg.svdvals(a @ r).sum()),
        residual=residual,
        strengths=found.strength,
    )
