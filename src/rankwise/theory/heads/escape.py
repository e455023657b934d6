"""The escape picture carried to a real model: which directions of its products grow at a plateau, and how soon.

A heuristic. It is exact for gradient flow at a saddle where the other parameters rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from rankwise.errors import UserError, require
from rankwise.sites.find import find
from rankwise.sites.site import Site
from rankwise.sites.sites import Sites
from rankwise.theory.heads.growth import Growth, growth_per_step
from rankwise.theory.heads.saddle import Escaping, Saddle, escaping

if TYPE_CHECKING:
    from jaxtyping import Float

Loss = Callable[[nn.Module, Any], Tensor]
LABEL = "a heuristic: exact for gradient flow at a saddle while all other parameters rest"


@dataclass(frozen=True)
class EscapeDirection:
    """A direction in which one product grows.

    Arguments:
        site: where the product lives.
        head: its number in the stack; of the group where heads share a factor.
        rate: `sigma`, how many e-foldings the amplitude grows in a unit of time; time is steps times the learning rate.
        error: how far `sigma` may be off, curvature of the loss included: the residual of the direction under the
            second derivative.
        left: `u`, and
        right: `v`: the product grows along `u v^T`; for grouped heads `u` or `v` of all members, one after the other.
        amplitude: `|A^T u + R v| / sqrt 2`, what grows.
        emptiness: how little of the factors lies in the inner direction that was examined, as a share: the result is
            exact at 0, and in the limit of small factors.
        time: until the direction has lowered the loss by the asked share, in units of gradient flow; 0 when it has
            already grown so far; None where there is no time.
        steps: the same in optimizer steps, or None.
    """

    site: str
    head: int = field(kw_only=True)
    rate: float = field(kw_only=True)
    error: float = field(kw_only=True)
    left: Float[Tensor, " m"] = field(kw_only=True, repr=False)
    right: Float[Tensor, " n"] = field(kw_only=True, repr=False)
    amplitude: float = field(kw_only=True)
    emptiness: float = field(kw_only=True)
    time: float | None = field(kw_only=True)
    steps: float | None = field(kw_only=True)


@dataclass(frozen=True)
class Escape:
    """What may grow from a plateau, the soonest (or, without times, the fastest) first.

    Arguments:
        directions: of all products.
        loss: on the batch.
        drop: the share of it that a direction's time counts to.
        time: until all directions together have lowered the loss by that share, or None.
        steps: the same in optimizer steps, or None.
        drift: the share of the loss that a unit of time loses already: a plateau is where it is small.
        why_no_time: the reason why there are directions and no times, or nothing.
        skipped: the products that were left out, each with the reason.
    """

    directions: tuple[EscapeDirection, ...]
    loss: float = field(kw_only=True)
    drop: float = field(kw_only=True)
    time: float | None = field(kw_only=True)
    steps: float | None = field(kw_only=True)
    drift: float = field(kw_only=True)
    why_no_time: str = field(kw_only=True, default="")
    skipped: Mapping[str, str] = field(kw_only=True, default_factory=dict)

    @property
    def at_plateau(self) -> bool:
        """Whether the loss falls by less than the asked share while the fastest direction grows by one e-folding."""
        fastest = max((one.rate for one in self.directions), default=0.0)
        return self.drift < self.drop * fastest

    def table(self) -> Table:
        """A row for each direction; the caption says what the numbers are worth."""
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left")
        table.add_column("product")
        for name in ("head", "rate", "amplitude", "emptiness", "time", "steps"):
            table.add_column(name, justify="right")
        for one in self.directions:
            cells = ("-" if value is None else f"{value:.4g}" for value in (one.time, one.steps))
            numbers = f"{one.rate:.4g}", f"{one.amplitude:.2g}", f"{one.emptiness:.0e}"
            table.add_row(one.site, str(one.head), *numbers, *cells)
        together = "" if self.time is None else f", after {self.time:.4g} by all together"
        together += "" if self.steps is None else f" ({self.steps:.0f} steps)"
        notes = [f"until the loss {self.loss:.4g} has fallen by {self.drop:.0%}{together}; {LABEL}"]
        if not self.at_plateau:
            notes.append("this is not a plateau: the loss falls as fast as anything grows")
        notes += [self.why_no_time] if self.why_no_time else []
        notes += [f"skipped {name}: {reason}" for name, reason in self.skipped.items()]
        table.caption = Text("\n".join(notes))
        return table

    def __rich__(self) -> Table:
        return self.table()


def escape(
    model: nn.Module,
    batch: Any,
    *,
    loss: Loss | None = None,
    sites: Sites | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    directions: int = 2,
    drop: float = 0.01,
    iterations: int = 4,
    seed: int = 0,
) -> Escape:
    """Ask a model at a plateau which directions of its products grow, how fast, and when they will show in the loss.

    A product `W = A R` with an inner direction to spare grows along the singular vectors of `G = -dL/dW` at the rates
    of its singular values. `G` is applied, and never formed, by the second derivative of the loss along the emptiest
    inner direction of each head; a direction of amplitude `s` lowers the loss by about `sigma s^2 / 2`, hence

        time = log(2 drop loss / (sigma s^2)) / (2 sigma)    for each alone,
        sum_i sigma_i s_i^2 exp(2 sigma_i t) / 2 = drop loss    for all together.

    It is a heuristic: gradients drift while the rest of the model trains, and real initializations are seldom small.
    Under Adam there are directions and no times, since its steps do not depend on the gradient's size.

    Arguments:
        model: any module whose sites are known.
        batch: what the loss is taken on; keyword arguments of the model, unless `loss` reads it otherwise.
        loss: from model and batch to a scalar; by default `model(**batch).loss`.
        sites: which products to ask, such as `rw.find(model).select(layer=0)`; all by default. Each takes some forty
            second derivatives of the loss.
        optimizer: the one in use, for its learning rates; without it times are those of gradient flow.
        directions: how many are looked for in each head of each product.
        drop: the share of the loss that counts as a drop.
        iterations: of the subspace; more make the rates more exact.
        seed: of its start.

    Returns:
        All directions that grow, the products that were skipped, and whether this is a plateau at all.
    """
    if directions < 1 or iterations < 1 or not 0 < drop < 1:
        raise UserError(
            f"{directions} directions, {iterations} iterations and a drop of {drop} were asked for: give positive "
            "numbers and a share between 0 and 1"
        )
    found = find(model) if sites is None else sites
    parameters = dict(model.named_parameters())
    skipped = {site.name: reason for site in found if (reason := _unfit(site, parameters))}
    chosen = [site for site in found if site.name not in skipped and site.kind != "matrix" and len(site.factors) > 1]
    skipped = {name: reason for name, reason in skipped.items() if reason != SINGLE}
    growing: list[tuple[EscapeDirection, Growth | str]] = []
    untimed: dict[str, None] = {}
    with _resting(model):
        value = (loss or _own_loss)(model, batch)
        level = _checked(value) * drop
        trained = {name: one for name, one in parameters.items() if one.requires_grad}
        slopes = torch.autograd.grad(value, list(trained.values()), create_graph=True, allow_unused=True)
        gradients = {name: one for name, one in zip(trained, slopes, strict=True) if one is not None}
        drift = sum(float(one.detach().square().sum()) for one in gradients.values()) * drop / level
        for site in chosen:
            if missing := [name for name in site.parameters if name not in gradients]:
                skipped[site.name] = f"the loss does not depend on {missing[0]}"
                continue
            growth = growth_per_step(optimizer, [parameters[name] for name in site.parameters])
            if isinstance(growth, str):
                untimed[growth] = None
            saddle = Saddle.of(site, parameters, gradients)
            for one in escaping(saddle, directions=directions, iterations=iterations, seed=seed):
                growing.append((_timed(site, one, growth, level), growth))
    time, steps = (None, None) if untimed else _together(growing, level)
    ordered = sorted(
        (one for one, _ in growing), key=lambda one: (math.inf if one.time is None else one.time, -one.rate)
    )
    return Escape(
        tuple(ordered),
        loss=level / drop,
        drop=drop,
        time=time,
        steps=steps,
        drift=drift,
        why_no_time="; ".join(untimed),
        skipped=skipped,
    )


SINGLE = "a single matrix"


def _unfit(site: Site, parameters: Mapping[str, nn.Parameter]) -> str:
    """Why a product has no escape directions of this kind, or nothing."""
    if len(site.factors) < 2:
        return SINGLE
    if len(site.factors) > 2:
        return "a chain of three or more factors grows from zero by another law"
    if site.attention is not None and site.kind == "qk":
        if site.attention.rotary is not None:
            return "rotary queries and keys: the loss is not a function of their product"
        if site.attention.norm is not None:
            return "normalized queries and keys: their product has no small scale to escape from"
    missing = [name for name in site.parameters if name not in parameters]
    if missing:
        return f"{missing[0]} is not a parameter of the model"
    frozen = [name for name in site.parameters if not parameters[name].requires_grad]
    return f"{frozen[0]} is frozen" if frozen else ""


def _timed(site: Site, found: Escaping, growth: Growth | str, level: float) -> EscapeDirection:
    rate, amplitude = found.rate, found.amplitude
    foldings = max(math.log(2 * level / (rate * amplitude**2)) / 2, 0.0) if amplitude > 0 else math.inf
    timed = isinstance(growth, Growth)
    return EscapeDirection(
        site.name,
        head=found.head,
        rate=rate,
        error=found.error,
        left=found.left,
        right=found.right,
        amplitude=amplitude,
        emptiness=found.emptiness,
        time=foldings / rate if timed else None,
        steps=foldings / growth.foldings(rate) if timed and growth.rate is not None else None,
    )


def _together(
    growing: Sequence[tuple[EscapeDirection, Growth | str]], level: float
) -> tuple[float | None, float | None]:
    """When all directions together have lowered the loss to a level, in time and in steps."""
    root = require("scipy.optimize", extra="theory").brentq
    found: list[float | None] = []
    for clock in ("time", "steps"):
        alone = [getattr(one, clock) for one, _ in growing]
        if not alone or None in alone:
            found.append(None)
            continue
        speeds = [
            one.rate if clock == "time" else growth.foldings(one.rate)
            for one, growth in growing
            if isinstance(growth, Growth)
        ]

        def missing(moment: float, alone=alone, speeds=speeds) -> float:
            shares = (2 * speed * (moment - one) for one, speed in zip(alone, speeds, strict=True))
            return sum(math.exp(min(share, 100.0)) for share in shares) - 1

        found.append(0.0 if missing(0.0) >= 0 else float(root(missing, 0.0, min(alone))))
    return found[0], found[1]


def _own_loss(model: nn.Module, batch: Any) -> Tensor:
    if not isinstance(batch, Mapping):
        raise UserError(
            f"a batch of type {type(batch).__name__} was given: give the model's keyword arguments in a mapping, or "
            "loss=lambda model, batch: ..."
        )
    found = getattr(model(**batch), "loss", None)
    if found is None:
        raise UserError(
            "the model returns no .loss for this batch: add labels to it, or give loss=lambda model, batch: ..."
        )
    return found


def _checked(value: Tensor) -> float:
    if not isinstance(value, Tensor) or value.ndim or not value.requires_grad:
        raise UserError("the loss is not a differentiable scalar: return a tensor of shape () that the weights lead to")
    found = float(value.detach())
    if not 0 < found < math.inf:
        raise UserError(f"the loss is {found:g}: a share of it is only told of a positive, finite one")
    return found


@contextmanager
def _resting(model: nn.Module) -> Iterator[None]:
    """Dropout off, attention by the one kernel that has second derivatives; as before afterwards."""
    training = model.training
    model.eval()
    try:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            yield
    finally:
        model.train(training)
