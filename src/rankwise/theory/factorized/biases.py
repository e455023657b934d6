"""Biases: the law holds for augmented factors, and each part is charged at its own rate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.factorized.convention import Convention
from rankwise.theory.factorized.losses import MatrixLoss, factors_of
from rankwise.theory.factorized.solving import State, minimized, moments, solved
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class BiasedBalance(Experiment):
    """Factors whose last row (left) and column (right) are biases, with a decay for weights and one for biases.

    Arguments:
        imbalance: of the augmented factors by its law, beside the flow's.
        stationary: `lam D_weights` at a stationary point, beside `-lam_bias D_biases`, which balances it.
        weights: the weights' own `A^T A - R R^T` at that point: zero where biases do not decay.
        biases: the biases' `a a^T - r r^T` there: not zero.
        residual: the largest entry of the gradient there.
        times: of the flow.
    """

    imbalance: SideBySide
    stationary: SideBySide
    weights: Float[Tensor, "r r"] = field(kw_only=True, repr=False)
    biases: Float[Tensor, "r r"] = field(kw_only=True, repr=False)
    residual: float = field(kw_only=True)
    times: Float[Tensor, " n"] = field(kw_only=True, repr=False)


def biased_balance(
    loss: MatrixLoss,
    left: Float[Tensor, "m r"],
    right: Float[Tensor, "r n"],
    *,
    decay: float,
    bias_decay: float,
    until: float,
    points: int = 51,
) -> BiasedBalance:
    """Gradient flow of augmented factors, `x^T [W_Q b_Q]^T [W_K b_K] x` with a constant in `x`, beside its law

        d/dt (A^T A - R R^T) = -2 lam (weights' part) - 2 lam_bias (biases' part),

    and a stationary point, where `lam D_weights + lam_bias D_biases = 0`. Undecayed biases leave the weights balanced.

    Arguments:
        loss: of the augmented product, `[m, n]`.
        left: the augmented left factor; its last row is the bias.
        right: the augmented right factor; its last column is the bias.
        decay: of the weights.
        bias_decay: of the biases.
        until: the last time of the flow.
        points: how many times are recorded.

    >>> factors = torch.arange(6).view(3, 2) / 4, torch.eye(2, 3)
    >>> law = biased_balance(MatrixLoss.rugged((3, 3), seed=1), *factors, decay=0.2, bias_decay=0.0, until=3.0)
    >>> law.imbalance.relative_error < 1e-9, bool(law.weights.abs().max() < 1e-7)
    (True, True)
    """
    a, r = factors_of(loss, left, right)
    if min(loss.shape) < 2:
        raise UserError(
            f"augmented factors of a {loss.shape[0]}x{loss.shape[1]} product have no weights beside the bias"
        )
    decays = Convention.HALVED.pressure(decay), Convention.HALVED.pressure(bias_decay)
    times = moments(until, points)
    by_row = torch.tensor([decays[0]] * (loss.shape[0] - 1) + [decays[1]], dtype=torch.float64)[:, None]
    by_column = torch.tensor([decays[0]] * (loss.shape[1] - 1) + [decays[1]], dtype=torch.float64)

    def slope(state: State) -> State:
        a, r, _ = state
        gradient = loss.gradient(a @ r)
        law = -2 * (decays[0] * _weights(a, r) + decays[1] * _biases(a, r))
        return -gradient @ r.mT - by_row * a, -a.mT @ gradient - by_column * r, law

    def charged(factors: State) -> Tensor:
        a, r = factors
        return loss.value(a @ r) + ((by_row * a.square()).sum() + (by_column * r.square()).sum()) / 2

    lefts, rights, predicted = solved(slope, (a, r, a.mT @ a - r @ r.mT), times)
    (a, r), residual = minimized(charged, (lefts[-1], rights[-1]))
    return BiasedBalance(
        SideBySide(predicted, simulated=lefts.mT @ lefts - rights @ rights.mT),
        SideBySide(decays[0] * _weights(a, r), simulated=-decays[1] * _biases(a, r)),
        weights=_weights(a, r),
        biases=_biases(a, r),
        residual=residual,
        times=times,
    )


def _weights(left: Tensor, right: Tensor) -> Tensor:
    return left[:-1].mT @ left[:-1] - right[:, :-1] @ right[:, :-1].mT


def _biases(left: Tensor, right: Tensor) -> Tensor:
    return left[-1:].mT @ left[-1:] - right[:, -1:] @ right[:, -1:].mT
