"""Where AdamW ends: no law for the imbalance, but fixed points that say which penalty its decay amounts to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError, require
from rankwise.theory.factorized.convention import Convention
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float

Loss = Callable[[Tensor], Tensor]
# Adam's memories, short, so that the first gradients are forgotten before the learning rate is gone.
QUIET = (0.9, 0.98)


@dataclass(frozen=True)
class AdamWPoint(Experiment):
    """A fixed point of AdamW on the whole batch.

    Arguments:
        weights: the minimizer of the loss with the penalty below, beside where AdamW ends.
        slope: `-eps lam w / (1 - lam |w|)`, beside the loss's gradient there.
        box: `1 / lam`, which no weight exceeds.
    """

    weights: SideBySide
    slope: SideBySide
    box: float = field(kw_only=True)


def adamw_point(
    loss: Loss,
    start: Float[Tensor, " p"],
    *,
    decay: float,
    eps: float,
    rate: float = 0.05,
    steps: int = 3000,
) -> AdamWPoint:
    """Run AdamW without noise to its end, beside the fixed points of `g / (|g| + eps) = -lam w`.

    They are the stationary points of `L + sum R(w)`, within the box `|w| < 1 / lam`, with

        R(w) = -(eps / lam) (lam |w| + log(1 - lam |w|)) = eps lam (w^2 / 2 + lam |w|^3 / 3 + ...).

    For small weights that is an L2 penalty of `eps lam` (arXiv 2410.23819, Appendix E), whose pressure on a product's
    nuclear norm is as small as `eps`; what remains at `eps = 1e-8` is the box, which knows no rank.

    Arguments:
        loss: a smooth torch function of a vector to a scalar.
        start: of the weights, within the box.
        decay: `lam` of `torch.optim.AdamW`.
        eps: its `eps`.
        rate: the first learning rate; it falls to zero.
        steps: how many.

    >>> centre = torch.tensor([0.3, -1.5, 4.0]).double()
    >>> found = adamw_point(lambda w: (w - centre).square().sum() / 2, torch.zeros(3), decay=0.5, eps=0.1)
    >>> found.weights.error < 1e-4, bool(found.weights.simulated.abs().max() < found.box)
    (True, True)
    """
    lam = _positive(decay, "decay")
    tiny = _positive(eps, "eps")
    first = start.detach().double()
    if not bool((first.abs() < 1 / lam).all()):
        raise UserError(
            f"the start reaches {float(first.abs().max()):g}: give one within the box |w| < 1 / lam = {1 / lam:g}"
        )
    ended = _descended(
        loss, first, lambda w: torch.optim.AdamW(w, lr=rate, betas=QUIET, eps=tiny, weight_decay=lam), rate, steps
    )

    def equivalent(weights: Tensor) -> Tensor:
        inside = lam * weights.abs()
        return loss(weights) - tiny / lam * (inside + torch.log1p(-inside)).sum()

    minimum = _boxed(equivalent, first, (1 - 1e-9) / lam)
    slope = torch.func.grad(loss)(ended)
    return AdamWPoint(
        SideBySide(minimum, simulated=ended),
        SideBySide(-tiny * lam * ended / (1 - lam * ended.abs()), simulated=slope),
        box=1 / lam,
    )


@dataclass(frozen=True)
class AdamWBias(Experiment):
    """Which point of a line AdamW's decay prefers, on weights and on products of weights.

    Arguments:
        direct: the point of least L2 norm, beside the end of AdamW on the weights.
        product: the point of least L1 norm, beside the end of AdamW on `w = a b`.
        same_direct: the end of Adam with an L2 penalty of `eps lam`, beside that of AdamW.
        same_product: the same on `w = a b`.
    """

    direct: SideBySide
    product: SideBySide
    same_direct: SideBySide
    same_product: SideBySide


def adamw_bias(
    normal: Float[Tensor, " p"],
    *,
    decay: float = 0.1,
    eps: float = 0.05,
    start: Float[Tensor, " p"] | None = None,
    rate: float = 0.1,
    steps: int = 4000,
) -> AdamWBias:
    """Minimize `(normal . w - 1)^2 / 2`, a line of minima, with AdamW of a large `eps`: its Figure 5 in two dimensions.

    Decay on the weights leads to the least L2 norm, decay on the factors of each weight to the least L1 norm: the
    nuclear norm of products that are numbers.

    Arguments:
        normal: of the line (or plane); its largest entry must be unique.
        decay: `lam` of AdamW.
        eps: its `eps`; with 1e-8 decay's pressure would be 1e-8 times as large.
        start: of the weights, and of both factors; ones by default.
        rate: the first learning rate; it falls to zero.
        steps: how many.

    >>> found = adamw_bias(torch.tensor([1.0, 0.5]), steps=1500)
    >>> found.direct.error < 0.05, found.product.error < 0.05
    (True, True)
    """
    along = normal.detach().double()
    sizes = along.abs().sort(descending=True).values
    if len(along) < 2 or not float(sizes[0]) > float(sizes[1]):
        raise UserError(f"a normal of {along.tolist()} was given: give two or more entries, one of them the largest")
    lam, tiny = _positive(decay, "decay"), _positive(eps, "eps")
    first = torch.ones_like(along) if start is None else start.detach().double()

    def direct(w: Tensor) -> Tensor:
        return (along @ w - 1).square() / 2

    def together(state: Tensor) -> Tensor:
        w, a, b = state.chunk(3)
        return direct(w) + direct(a * b)

    def ends(adam: Callable[[list[Tensor]], torch.optim.Optimizer]) -> tuple[Tensor, Tensor]:
        w, a, b = _descended(together, torch.cat([first] * 3), adam, rate, steps).chunk(3)
        return w, a * b

    decoupled = ends(lambda w: torch.optim.AdamW(w, lr=rate, betas=QUIET, eps=tiny, weight_decay=lam))
    coupled = ends(lambda w: torch.optim.Adam(w, lr=rate, betas=QUIET, eps=tiny, weight_decay=lam * tiny))
    corner = torch.zeros_like(along)
    top = int(along.abs().argmax())
    corner[top] = 1 / along[top]
    return AdamWBias(
        SideBySide(along / along.square().sum(), simulated=decoupled[0]),
        SideBySide(corner, simulated=decoupled[1]),
        SideBySide(coupled[0], simulated=decoupled[0]),
        SideBySide(coupled[1], simulated=decoupled[1]),
    )


def _descended(
    loss: Loss, start: Tensor, optimizer: Callable[[list[Tensor]], torch.optim.Optimizer], rate: float, steps: int
) -> Tensor:
    weights = torch.nn.Parameter(start.clone())
    stepper, gradient = optimizer([weights]), torch.func.grad(loss)
    for step in range(steps):
        stepper.param_groups[0]["lr"] = rate * (1 - step / steps) ** 2
        weights.grad = gradient(weights.detach())
        stepper.step()
    return weights.detach()


def _boxed(function: Loss, start: Tensor, edge: float) -> Tensor:
    """The minimizer within `|w| <= edge`."""
    evaluate = torch.func.grad_and_value(function)

    def evaluated(flat) -> tuple[float, object]:
        gradient, value = evaluate(torch.tensor(flat))
        return float(value), gradient.numpy()

    answer = require("scipy.optimize", extra="theory").minimize(
        evaluated,
        start.numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-edge, edge)] * len(start),
        options={"ftol": 0.0, "gtol": 1e-12, "maxiter": 10_000},
    )
    return torch.tensor(answer.x)


def _positive(value: float, what: str) -> float:
    if not Convention.HALVED.pressure(value):
        raise UserError(f"a {what} of {value} was given: AdamW's fixed points need a positive one")
    return float(value)
