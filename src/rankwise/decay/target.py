"""Decay toward a given matrix: an uncompressed teacher, or where the training started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rankwise.decay.base import Coefficient
from rankwise.decay.frobenius import FrobeniusDecay
from rankwise.decay.products import Collected, LiveProduct, Target, listed
from rankwise.decay.stacks import PLAIN, Task
from rankwise.errors import UserError
from rankwise.product.multipliers import pulled_back
from rankwise.product.penalties import frobenius_penalty
from rankwise.product.product import Product
from rankwise.sites.sites import Sites


class TargetDecay(FrobeniusDecay):
    """Half the squared distance of every product from a matrix of its own, without forming the difference.

        F = |A B - T|_F^2 / 2,   dF/dA = A (B B^T) - T B^T,   dF/dB = (A^T A) B - A^T T.

    Alone it makes the product the best approximation of `T` that its rank allows; beside a task it compresses with an
    uncompressed teacher.

    Arguments:
        target, coefficient, decoupled, model: as for every decay; a coefficient must be given.
        toward: for the name of every product the matrix, `[*batch, m, n]` in the product's orientation; or a product,
            such as the same site's in the teacher, of which only its factors are ever multiplied.

    >>> layer = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> _ = [nn.init.constant_(parameter, 2.0) for parameter in layer.parameters()]
    >>> decay = TargetDecay(layer, {"chain": torch.tensor([[5.0]])}, coefficient=1.0)
    >>> decay.penalty().item(), [each.item() for each in decay.gradients_of(decay.products[0])]
    (0.5, [-2.0, -2.0])
    """

    from_grams = False

    def __init__(
        self,
        target: Target,
        toward: Mapping[str, Tensor | Product],
        *,
        coefficient: Coefficient,
        decoupled: bool | None = None,
        model: nn.Module | None = None,
    ) -> None:
        if coefficient is None:
            raise UserError("decay toward a target is no weight decay of an optimizer to take over: give coefficient=")
        super().__init__(target, coefficient=coefficient, decoupled=decoupled, model=model)
        self._toward = self._fitting(toward)

    def value_of(self, live: LiveProduct) -> Tensor:
        product = live.product().to(torch.float64)
        return frobenius_penalty(product - _beside(self._toward[live.name], product))

    def gradients_of(self, live: LiveProduct, task: Task = PLAIN) -> tuple[Tensor, ...]:
        product = live.product()
        product = product.to(torch.promote_types(product.dtype, torch.float32))
        pull = pulled_back(product, _beside(self._toward[live.name], product))
        return tuple(one - two for one, two in zip(super().gradients(product), pull, strict=True))

    def value(self, product: Product) -> Tensor:
        raise self._needs_name()

    def gradients(self, product: Product, task: Task = PLAIN) -> tuple[Tensor, ...]:
        raise self._needs_name()

    def _needs_name(self) -> UserError:
        return UserError(f"every product of a {type(self).__name__} has its own target: ask value_of and gradients_of")

    def _fitting(self, toward: Mapping[str, Tensor | Product]) -> dict[str, Product]:
        names = [live.name for live in self.products]
        if missing := [name for name in names if name not in toward]:
            raise UserError(f"there is no target for {listed(missing)}: toward= needs one for each product")
        if unknown := [name for name in toward if name not in names]:
            raise UserError(f"toward= has targets for {listed(unknown)}, which are no products of this decay")
        found = {}
        for live in self.products:
            given = toward[live.name]
            goal = (given if isinstance(given, Product) else Product(given)).detach()
            if goal.shape != live.product().shape:
                raise UserError(
                    f"the target of {live.name} has shape {tuple(goal.shape)} and its product "
                    f"{tuple(live.product().shape)}: give it in the product's orientation, see site.orientation"
                )
            found[live.name] = goal
        return found

    def _checked(self, collected: Collected) -> Collected:
        if collected.modules:
            raise UserError("a tensorized layer has no target in closed form: TargetDecay acts on products of matrices")
        return collected


class InitializationDecay(TargetDecay):
    """Decay of every product toward where it was when the decay was made: `|A B - A_0 B_0|_F^2 / 2`.

    Weight decay pulls to zero and so on the rank; this pulls to the start and leaves the rank of the change to the task
    (for adapters and fine-tuning). Distances are between products, so that a change of gauge costs nothing. The factors
    of the start are copied, and kept in the state.
    """

    def __init__(
        self,
        target: Target,
        *,
        coefficient: Coefficient,
        decoupled: bool | None = None,
        model: nn.Module | None = None,
    ) -> None:
        target = target if isinstance(target, Sites | nn.Module) else list(target)
        start = FrobeniusDecay(target, model=model)
        copies = {live.name: Product(*(view.clone() for view in live.views())) for live in start.products}
        super().__init__(target, copies, coefficient=coefficient, decoupled=decoupled, model=model)

    def state_dict(self) -> dict[str, Any]:
        start = {name: list(product.factors) for name, product in self._toward.items()}
        return {**super().state_dict(), "start": start}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._toward = self._fitting({name: Product(*factors) for name, factors in state["start"].items()})


def _beside(goal: Product, product: Product) -> Product:
    """A target on the device and in the type of a product."""
    return goal.to(product.device).to(product.dtype)
