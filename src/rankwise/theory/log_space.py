"""Gradient flow on `(u, v)` in logarithmic coordinates, where an initialization of 1e-300 is as good as any."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

# A solver's predictor may overshoot the growth of a product without limit. Beyond exp(30) it is held, so that the
# error control meets a large number, and not infinity.
LARGEST_EXPONENT = 30.0


@dataclass(frozen=True)
class LogSpace:
    """The change of variables `y_i = atanh(v_i / u_i)`, in which `dy/dt = g(q)`.

    The flow keeps `u_i^2 - v_i^2 = alpha^2 c_i`, so one number a coordinate is enough:

        q_i = u_i v_i = (alpha^2 c_i / 2) sinh(2 y_i),      log_alpha (u_i + v_i) = 1 - (y_i + log(c_i) / 2) / L,

    with `L = log(1/alpha)`. It holds for `u_i > |v_i|`, which exchanging the two, and flipping the signs of both,
    brings about; neither changes `q` nor its flow.

    Arguments:
        log_alpha: the natural logarithm of the scale of the initialization, negative.
        start: `y` at the start, which does not depend on alpha.
        log_imbalance: `log(c_i)`, `c_i = |u_{0,i}^2 - v_{0,i}^2|`.
        exchanged: where `u` and `v` have changed places.
        flipped: where both have changed signs.
    """

    log_alpha: float
    start: Float[Tensor, " p"] = field(kw_only=True)
    log_imbalance: Float[Tensor, " p"] = field(kw_only=True)
    exchanged: Bool[Tensor, " p"] = field(kw_only=True)
    flipped: Bool[Tensor, " p"] = field(kw_only=True)

    @classmethod
    def of(cls, log_alpha: float, u: Tensor, v: Tensor) -> LogSpace:
        """The coordinates of a network initialized at `(alpha u, alpha v)`."""
        check_scale(log_alpha)
        u, v = start_weights(u, v)
        equal = (u.abs() == v.abs()).nonzero().flatten().tolist()
        if equal:
            raise UserError(
                f"|u| = |v| = {u[equal[0]].abs().item():g} for coordinate {equal[0]} ({len(equal)} in all): "
                "such a coordinate can never change its sign; draw u and v independently"
            )
        exchanged = u.abs() < v.abs()
        larger, smaller = torch.where(exchanged, v, u), torch.where(exchanged, u, v)
        flipped = larger < 0
        return cls(
            log_alpha,
            start=torch.atanh(smaller / larger),
            log_imbalance=torch.log((larger - smaller).abs()) + torch.log((larger + smaller).abs()),
            exchanged=exchanged,
            flipped=flipped,
        )

    @property
    def span(self) -> float:
        """`L = log(1/alpha)`: the unit of rescaled time."""
        return -self.log_alpha

    @property
    def offset(self) -> Float[Tensor, " p"]:
        """`log(alpha^2 c_i / 4)`, where the exponents of the products start."""
        return 2 * self.log_alpha + self.log_imbalance - math.log(4)

    def products(self, y: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch p"]:
        """`q = u * v`."""
        up, down = self._exponentials(y)
        return up - down

    def slopes(self, y: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch p"]:
        """`dq/dy = alpha^2 c cosh(2 y) = u^2 + v^2`."""
        up, down = self._exponentials(y)
        return 2 * (up + down)

    def coordinates(self, products: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch p"]:
        """`y` at given products: `asinh(2 q / (alpha^2 c)) / 2`, in logarithms."""
        size = products.abs().log() - self.offset - math.log(2)
        # asinh(e^x) is x + log(2) once e^x is large, and e^x while it is small.
        angle = torch.where(size > 20, size + math.log(2), torch.asinh(size.clamp(max=20).exp()))
        return torch.sign(products) * angle / 2

    def log_scale(self, y: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch p"]:
        """`b = log_alpha (u + v)`: 1 at the start, 0 where a positive product is active, 2 where a negative one is."""
        return 1 - (y + self.log_imbalance / 2) / self.span

    def weights(self, y: Float[Tensor, "*batch p"]) -> tuple[Float[Tensor, "*batch p"], Float[Tensor, "*batch p"]]:
        """`(u, v)` as the network has them; they underflow to zero where float64 does."""
        scale = self.log_alpha + self.log_imbalance / 2 - math.log(2)
        up, down = (scale + y).exp(), (scale - y).exp()
        larger, smaller = up + down, up - down
        sign = torch.where(self.flipped, -1.0, 1.0).to(y)
        u, v = torch.where(self.exchanged, smaller, larger), torch.where(self.exchanged, larger, smaller)
        return sign * u, sign * v

    def _exponentials(self, y: Tensor) -> tuple[Tensor, Tensor]:
        offset = self.offset
        return (offset + 2 * y).clamp(max=LARGEST_EXPONENT).exp(), (offset - 2 * y).clamp(max=LARGEST_EXPONENT).exp()


def check_scale(log_alpha: float) -> None:
    """Refuse initializations that are not small."""
    if not (log_alpha < 0 and math.isfinite(log_alpha)):
        raise UserError(
            f"log_alpha = {log_alpha:g} is a scale alpha >= 1 (or none): times are counted in log(1/alpha), so give "
            "the logarithm of a number below 1, such as math.log(1e-8); a large initialization goes into the start"
        )


def start_weights(u: Tensor, v: Tensor) -> tuple[Float[Tensor, " p"], Float[Tensor, " p"]]:
    """The two weight vectors of a start in float64, checked."""
    u, v = (torch.as_tensor(one, dtype=torch.float64).detach() for one in (u, v))
    if u.ndim != 1 or u.shape != v.shape:
        raise UserError(f"the start has shapes {tuple(u.shape)} and {tuple(v.shape)}: give two vectors of equal length")
    if not bool((u.isfinite() & v.isfinite()).all()):
        raise UserError("the start holds NaN or infinity: give two vectors of finite numbers")
    return u, v
