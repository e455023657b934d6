"""Whether a stationary point of the factors is one of the nuclear norm, and how steep its way out is if not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.factorized.convention import Convention
from rankwise.theory.factorized.losses import MatrixLoss, factors_of
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float

# Singular values below this share of the largest are none.
FLOOR = 1e-7
# How far along the way out its curvature is measured.
PROBE = 1e-3


@dataclass(frozen=True)
class Certificate(Experiment):
    """What the gradient `M = dL/dW` at a stationary point `W = U S V^T` of the decayed factors says.

    There `M = -lam U V^T + M_perp` with `U^T M_perp = 0 = M_perp V`, and `W` is stationary for `L + lam |.|_*` if and
    only if also `|M_perp| <= lam` (our own restatement, not in the paper). Otherwise, with inner width to spare, the
    point is a strict saddle: adding `eps u z^T` and `eps z v^T` changes the loss by `eps^2 (lam - |M_perp|)`.

    Arguments:
        aligned: `-lam U V^T`, beside the part of `M` on the live directions.
        curvature: `lam - |M_perp|`, beside the loss's measured change; zeros where there is no spare direction.
        excess: `|M_perp| / lam`, at most 1 for a stationary point of the nuclear norm; NaN without decay.
        rank: of `W`.
        spare: inner directions in which both factors vanish.
        residual: the largest entry of the gradient by the factors: how stationary they are.
    """

    aligned: SideBySide
    curvature: SideBySide
    excess: float = field(kw_only=True)
    rank: int = field(kw_only=True)
    spare: int = field(kw_only=True)
    residual: float = field(kw_only=True)

    @property
    def optimal(self) -> bool:
        """Whether `|M_perp| <= lam`, within a millionth: stationary for the nuclear norm among all matrices."""
        return self.excess <= 1 + 1e-6

    @property
    def verdict(self) -> str:
        """What the point is, in words."""
        if self.optimal:
            return "stationary for the nuclear norm"
        if self.spare:
            return f"a strict saddle: a new direction gains {-float(self.curvature.predicted):.4g} eps^2"
        return "stationary for the nuclear norm among matrices of this rank; a wider factorization could go on"


def certificate(
    loss: MatrixLoss,
    left: Float[Tensor, "m r"],
    right: Float[Tensor, "r n"],
    *,
    decay: float,
    convention: Convention = Convention.HALVED,
) -> Certificate:
    """Examine a stationary point of `L(A R)` with decay on the factors.

    >>> loss = MatrixLoss.denoising(torch.diag(torch.tensor([1.0, 0.8])))
    >>> at_zero = certificate(loss, torch.zeros(2, 2), torch.zeros(2, 2), decay=0.25)
    >>> at_zero.verdict, at_zero.curvature.error < 1e-6
    ('a strict saddle: a new direction gains 0.75 eps^2', True)
    """
    a, r = factors_of(loss, left, right)
    pressure = convention.pressure(decay)
    gradient = loss.gradient(a @ r)
    u, values, vt = torch.linalg.svd(a @ r, full_matrices=False)
    rank = int((values > FLOOR * values[0]).sum()) if float(values[0]) > 0 else 0
    u, v = u[:, :rank], vt[:rank].mT
    outside_left = torch.eye(len(u), dtype=torch.float64) - u @ u.mT
    outside_right = torch.eye(len(v), dtype=torch.float64) - v @ v.mT
    beyond = outside_left @ gradient @ outside_right
    out, sizes, ways = torch.linalg.svd(-beyond)
    spare = _spare(a, r)
    curvature = torch.zeros(2, dtype=torch.float64)
    if spare.shape[1]:
        curvature = torch.stack([pressure - sizes[0], _measured(loss, a, r, out[:, 0], ways[0], spare[:, 0], pressure)])
    stationarity = (gradient @ r.mT + pressure * a).abs().max(), (a.mT @ gradient + pressure * r).abs().max()
    return Certificate(
        SideBySide(-pressure * u @ v.mT, simulated=gradient - beyond),
        SideBySide(curvature[0], simulated=curvature[1]),
        excess=float(sizes[0]) / pressure if pressure else float("nan"),
        rank=rank,
        spare=spare.shape[1],
        residual=float(max(stationarity)),
    )


def _spare(left: Tensor, right: Tensor) -> Tensor:
    """The inner directions in which both factors vanish, `[r, spare]`."""
    values, vectors = torch.linalg.eigh(left.mT @ left + right @ right.mT)
    return vectors[:, values <= FLOOR * max(float(values[-1]), torch.finfo(torch.float64).tiny)]


def _measured(
    loss: MatrixLoss, left: Tensor, right: Tensor, u: Tensor, v: Tensor, inner: Tensor, pressure: float
) -> Tensor:
    """The loss's change along the way out over `eps^2`, by two central differences of which the error cancels."""

    def charged(eps: float) -> Tensor:
        a, r = left + eps * torch.outer(u, inner), right + eps * torch.outer(inner, v)
        return loss.value(a @ r) + pressure / 2 * (a.square().sum() + r.square().sum())

    def bend(eps: float) -> Tensor:
        return (charged(eps) + charged(-eps) - 2 * charged(0.0)) / (2 * eps**2)

    return (4 * bend(PROBE) - bend(2 * PROBE)) / 3


def lifted(values: Float[Tensor, "m n"], *, rank: int) -> tuple[Float[Tensor, "m r"], Float[Tensor, "r n"]]:
    """The balanced factors `U sqrt(S)`, `sqrt(S) V^T` of a matrix, of a given inner width.

    >>> left, right = lifted(4 * torch.eye(2), rank=3)
    >>> left.shape, bool(((left @ right) - 4 * torch.eye(2)).abs().max() < 1e-12)
    (torch.Size([2, 3]), True)
    """
    u, sizes, vt = torch.linalg.svd(values.double(), full_matrices=False)
    kept = min(rank, len(sizes))
    if bool((sizes[kept:] > FLOOR * sizes[0]).any()):
        raise UserError(f"a matrix of rank above {rank} has no factors of that width: give a wider rank")
    roots = sizes[:kept].sqrt()
    pad = rank - kept
    left = torch.nn.functional.pad(u[:, :kept] * roots, (0, pad))
    right = torch.nn.functional.pad(roots[:, None] * vt[:kept], (0, 0, 0, pad))
    return left, right
