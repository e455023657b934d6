"""Two factors whose directions differ by hundreds of orders of magnitude, kept so that none is lost to rounding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.factorized.losses import matrix

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Graded:
    """The factors of `W = A R`, stacked as `Z = [A; R^T] = Q diag(exp(d)) Y`, `Q` orthonormal, rows of `Y` of length 1.

    Training acts on `Z` from the left: `dA/dt = -M R^T` and `dR/dt = -A^T M` are `dZ/dt = H Z` with the symmetric
    `H = -[[0, M], [M^T, 0]]`. Each step moves `Q`, and a QR decomposition hands its triangle on to the rows, largest
    first. Its rounding is a left factor `1 + O(1e-16)` on `Z`, so every direction keeps its digits; in plain float64
    those below 1e-16 of the largest are gone after the first stage, and an initialization of 1e-300 acts like one of
    1e-16. The scale of the initialization is given by its logarithm.

    Arguments:
        basis: `Q`.
        logs: `d`.
        rows: `Y`.
        split: how many rows of `Z` belong to the left factor.
    """

    basis: Float[Tensor, "k w"] = field(repr=False)
    logs: Float[Tensor, " w"] = field(kw_only=True)
    rows: Float[Tensor, "w r"] = field(kw_only=True, repr=False)
    split: int = field(kw_only=True)

    @classmethod
    def of(cls, left: Float[Tensor, "m r"], right: Float[Tensor, "r n"], *, log_alpha: float) -> Graded:
        """The factors `alpha left` and `alpha right`.

        >>> import math
        >>> pair = Graded.of(torch.eye(2), torch.eye(2), log_alpha=-700.0)
        >>> pair.logs.tolist() == [-700.0 + math.log(2) / 2] * 2, float(pair.product().norm())
        (True, 0.0)
        """
        one, two = matrix(left, "the left factor"), matrix(right, "the right factor")
        if one.shape[1] != two.shape[0]:
            raise UserError(f"factors of shapes {tuple(one.shape)} and {tuple(two.shape)} do not multiply")
        basis, rows = torch.linalg.qr(torch.cat([one, two.mT]))
        lengths = rows.norm(dim=1)
        if not bool((lengths > 0).all()):
            raise UserError(
                "the stacked factors do not have full rank: directions that are exactly zero never grow; start from "
                "random factors"
            )
        return cls(basis, logs=lengths.log() + log_alpha, rows=rows / lengths[:, None], split=len(one))

    def moved(self, basis: Float[Tensor, "k w"]) -> Graded:
        """The factors after a linear step that takes `Q` to a given matrix."""
        order = self.logs.argsort(descending=True)
        logs, rows = self.logs[order], self.rows[order]
        turned, triangle = torch.linalg.qr(basis[:, order])
        # Only rows that are smaller are added to a row, so nothing overflows.
        rows = (triangle * (logs - logs[:, None]).clamp(max=0.0).exp()) @ rows
        lengths = rows.norm(dim=1)
        return Graded(turned, logs=logs + lengths.log(), rows=rows / lengths[:, None], split=self.split)

    def force(self, gradient: Float[Tensor, "m n"], basis: Float[Tensor, "k w"] | None = None) -> Float[Tensor, "k w"]:
        """`H Q`, the direction in which a gradient of the product moves the basis (or another matrix like it)."""
        one, two = (self.basis if basis is None else basis).split((self.split, len(self.basis) - self.split))
        return torch.cat([-gradient @ two, -gradient.mT @ one])

    def factors(self, basis: Float[Tensor, "k w"] | None = None) -> tuple[Tensor, Tensor]:
        """`A` and `R` in float64, where what is below 1e-308 is zero."""
        stacked = (self.basis if basis is None else basis) @ (self.logs.exp()[:, None] * self.rows)
        return stacked[: self.split], stacked[self.split :].mT

    def product(self, basis: Float[Tensor, "k w"] | None = None) -> Float[Tensor, "m n"]:
        """`A R` in float64."""
        left, right = self.factors(basis)
        return left @ right

    def log_amplitude(self, u: Float[Tensor, " m"], v: Float[Tensor, " n"]) -> float:
        """The logarithm of `|A^T u + R v| / sqrt 2`, the amplitude that grows along `u v^T`."""
        shares = torch.cat([u, v]) @ self.basis / 2**0.5
        top = float(self.logs.max())
        return top + float(((shares * (self.logs - top).exp()) @ self.rows).norm().log())
