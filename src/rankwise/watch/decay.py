"""What an optimizer implies for the products of its parameters: accumulated decay, and the nuclear coefficient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rankwise.errors import UserError
from rankwise.sites.site import Site
from rankwise.sites.source import tensor_of


@dataclass(frozen=True)
class Implied:
    """What the optimizer implies for one site.

    Arguments:
        decay: the sum of learning rate times weight decay over all steps; None where the factors' differ.
        nuclear_coefficient: the weight of the nuclear norm that decay amounts to, for each head; None where no such
            statement holds.
    """

    decay: float | None
    nuclear_coefficient: Tensor | None


class DecayCount:
    """Follows an optimizer: adds `learning rate x weight decay` up at every step that it makes.

    For gradient descent on a loss of the product `A B`, decay of both factors with equal coefficients shrinks the
    imbalance `A^T A - B B^T` by `exp(-2 sum lr lambda)`. Under AdamW that is no theorem: the prediction is written
    beside what is measured.

    Arguments:
        optimizer: a torch optimizer, or one that accelerate wrapped.
        model: whose parameters it moves.
    """

    def __init__(self, optimizer: Any, model: nn.Module) -> None:
        self.optimizer, self.model = _unwrapped(optimizer), model
        self.sums = [0.0] * len(self.optimizer.param_groups)
        self._hook = self.optimizer.register_step_post_hook(lambda *_: self._count())

    def remove(self) -> None:
        """Follow it no more."""
        self._hook.remove()

    def state_dict(self) -> dict[str, Any]:
        return {"sums": list(self.sums)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.sums = [float(value) for value in state.get("sums", self.sums)]

    def observe(self, sites: Sequence[Site]) -> dict[str, Implied]:
        """What is implied for each site, by its name."""
        groups = {
            id(each): place for place, group in enumerate(self.optimizer.param_groups) for each in group["params"]
        }
        return {site.name: self._of(site, groups) for site in sites}

    def _of(self, site: Site, groups: Mapping[int, int]) -> Implied:
        try:
            factors = [tensor_of(self.model, factor.parameter)[0] for factor in site.factors]
        except UserError:
            return Implied(None, None)
        places = [groups.get(id(each)) for each in factors]
        known = [place for place in places if place is not None]
        if len(known) < len(places):
            return Implied(None, None)
        sums = [self.sums[place] for place in known]
        decay = sums[0] if all(math.isclose(each, sums[0], rel_tol=1e-9) for each in sums) else None
        if len(factors) != 2:
            return Implied(decay, None)
        coefficients = [self._coefficient(site, *pair) for pair in zip(range(2), factors, known, strict=True)]
        if coefficients[0] is None or coefficients[1] is None:
            return Implied(decay, None)
        return Implied(decay, (coefficients[0] * coefficients[1]).sqrt())

    def _coefficient(self, site: Site, position: int, parameter: Tensor, place: int) -> Tensor | None:
        """The strength of L2 regularization that a factor's decay amounts to, for each head.

        For AdamW whose gradients are mostly noise, `lambda sigma` with the root mean square `sigma` of the gradient
        over the factor, from the second moments; for plain gradient descent `lambda`.
        """
        group = self.optimizer.param_groups[place]
        decay = float(group.get("weight_decay", 0.0))
        if isinstance(self.optimizer, torch.optim.SGD):
            return torch.tensor(decay, dtype=torch.float64) if not group.get("momentum") else None
        state = self.optimizer.state.get(parameter, {})
        moments, step = state.get("exp_avg_sq"), state.get("step")
        if moments is None or step is None or "betas" not in group:
            return None
        if not (isinstance(self.optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay")):
            return None
        correction = 1 - float(group["betas"][1]) ** float(step)
        moments = site.factors[position].view(moments)
        return decay * (moments.double().mean((-2, -1)) / max(correction, 1e-300)).sqrt()

    def _count(self) -> None:
        groups = self.optimizer.param_groups
        self.sums += [0.0] * (len(groups) - len(self.sums))
        for place, group in enumerate(groups):
            # Inside somebody's training step nothing may raise.
            with suppress(Exception):
                self.sums[place] += float(group["lr"]) * float(group.get("weight_decay", 0.0))


def _unwrapped(optimizer: Any) -> Optimizer:
    """The optimizer of torch inside the wrappers of accelerate and Lightning."""
    while not hasattr(optimizer, "_optimizer_step_post_hooks") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, Optimizer):
        raise UserError(f"optimizer= takes a torch optimizer, got {type(optimizer).__name__}")
    return optimizer
