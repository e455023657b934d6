"""The first escape from a small initialization: which direction, and when, to the last digit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.heads.graded import Graded
from rankwise.theory.heads.losses import ProductsLoss
from rankwise.theory.heads.simulation import Factors, begun, checked_gradients, descending, flowing
from rankwise.theory.side_by_side import Experiment, SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float

# The product along the escaping direction at which it is timed: grown, but too small to bend its own growth.
LEVEL = 1e-4


@dataclass(frozen=True)
class FirstEscape(Experiment):
    """When products leave zero, for several scales of initialization.

    Arguments:
        times: `(log(1/alpha) + log(sqrt(2 level) / |s_0|)) / sigma`, with `s_0 = (A_0^T u + R_0 v) / sqrt 2`, beside
            the simulated moments at which `u^T W v` reaches the level; steps times the rate for gradient descent.
        slope: `1 / sigma`, the time that one more e-folding of smallness costs, beside the simulated one.
        direction: `u v^T`, beside the simulated product over its norm at that moment of the smallest alpha.
        product: the name of the product that escapes.
        rate: `sigma`: the largest singular value of `-dL/dW` at zero, or `log(1 + lr sigma) / lr` for gradient descent.
        log_alphas: of the scales.
    """

    times: SideBySide
    slope: SideBySide
    direction: SideBySide
    product: str = field(kw_only=True)
    rate: float = field(kw_only=True)
    log_alphas: Float[Tensor, " runs"] = field(kw_only=True)


def first_escape(
    loss: ProductsLoss,
    starts: Factors,
    *,
    log_alphas: Sequence[float],
    learning_rate: float | None = None,
    level: float = LEVEL,
) -> FirstEscape:
    """Simulate until the first direction has grown to a level, at several alphas, beside the linear prediction.

    Near zero `dA/dt = G R^T` and `dR/dt = A^T G` with `G = -dL/dW` at zero, so that `A^T u + R v` grows at the rate
    `sigma_1(G)` along its first singular vectors; a step of gradient descent multiplies it by `1 + lr sigma_1`. For an
    attention head `G` of the queries and keys is zero as long as values and outputs are: they wait.

    Arguments:
        loss: of the products.
        starts: a pair `(left, right)` for each product, which alpha multiplies.
        log_alphas: logarithms of two or more alphas.
        learning_rate: of gradient descent; without it, gradient flow.
        level: of `u^T W v`.

    >>> from rankwise.theory import MatrixLoss, SingleProduct
    >>> loss = SingleProduct(MatrixLoss.denoising(torch.diag(torch.tensor([2.0, 1.0]))))
    >>> found = first_escape(loss, [(torch.eye(2), torch.eye(2))], log_alphas=[-20.0, -40.0], learning_rate=0.1)
    >>> round(found.slope.predicted.item(), 4), found.slope.relative_error < 1e-3, found.times.relative_error < 1e-3
    (0.5485, True, True)
    """
    if len(log_alphas) < 2 or len(set(log_alphas)) < len(log_alphas):
        raise UserError(f"log_alphas {list(log_alphas)} were given: give two or more different ones, for a slope")
    if not level > 0 or (learning_rate is not None and not learning_rate > 0):
        raise UserError(f"a level of {level} and a learning rate of {learning_rate} were given: give positive numbers")
    ordered = sorted(log_alphas, reverse=True)
    zero = tuple(torch.zeros(shape, dtype=torch.float64) for shape in loss.shapes)
    decompositions = [torch.linalg.svd(-one) for one in checked_gradients(loss, zero)]
    place = max(range(len(zero)), key=lambda index: float(decompositions[index].S[0]))
    u, v, sigma = decompositions[place].U[:, 0], decompositions[place].Vh[0], float(decompositions[place].S[0])
    if not sigma > 0:
        raise UserError("every gradient is zero where the products are: nothing escapes at a rate of its own")
    rate = sigma if learning_rate is None else math.log1p(learning_rate * sigma) / learning_rate
    predicted, simulated, reached = [], [], torch.zeros(0)
    for log_alpha in ordered:
        states = begun(loss, starts, log_alpha)
        foldings = math.log(2 * level) / 2 - states[place].log_amplitude(u, v)
        if not foldings > 1:
            raise UserError(
                f"at log_alpha = {log_alpha:g} the direction begins above the level {level:g}: give a smaller one"
            )
        predicted.append(foldings / rate)
        time, reached = _crossing(loss, states, place, u, v, level, foldings / rate, learning_rate)
        simulated.append(time)
    times = [torch.tensor(one, dtype=torch.float64) for one in (predicted, simulated)]
    lengths = -torch.tensor(ordered, dtype=torch.float64)
    return FirstEscape(
        SideBySide(times[0], simulated=times[1]),
        SideBySide(
            torch.tensor(1 / rate, dtype=torch.float64),
            simulated=(times[1][-1] - times[1][0]) / (lengths[-1] - lengths[0]),
        ),
        SideBySide(torch.outer(u, v), simulated=reached / reached.norm()),
        product=loss.names[place],
        rate=rate,
        log_alphas=-lengths,
    )


def _crossing(
    loss: ProductsLoss,
    states: tuple[Graded, ...],
    place: int,
    u: Tensor,
    v: Tensor,
    level: float,
    expected: float,
    learning_rate: float | None,
) -> tuple[float, Tensor]:
    """When `u^T W v` reaches the level, by its logarithm between two records, and the product then."""
    most = 2 * expected + 10.0 * expected / max(expected, 1.0)
    if learning_rate is None:
        ticks = [expected * share / 200 for share in range(1, 401)]
        path = zip(ticks, flowing(loss, states, ticks), strict=True)
    else:
        steps = descending(loss, states, rate=learning_rate)
        path = ((step * learning_rate, one) for step, one in enumerate(islice(steps, int(most / learning_rate) + 1), 1))
    before, low = 0.0, -math.inf
    for time, now in path:
        product = now[place].product()
        size = float(u @ product @ v)
        if size >= level:
            share = (math.log(level) - low) / (math.log(size) - low) if low > -math.inf else 1.0
            return before + share * (time - before), product
        before, low = time, math.log(size) if size > 0 else -math.inf
    raise UserError(
        f"the direction did not reach {level:g} by twice its expected time {expected:.4g}: another one won the race, "
        "or the learning rate is too large"
    )
