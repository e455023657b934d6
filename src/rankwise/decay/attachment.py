"""A decay in the steps of one optimizer: at which rate, instead of which weight decay, and once."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rankwise.decay import pending
from rankwise.decay.hooks import Groups, Scaling, StepHooks, unwrapped
from rankwise.decay.ordinary import Manner, Removed, chosen_manner, manner_of, ordinary_decay, remove
from rankwise.decay.products import covered, listed, per_parameter
from rankwise.decay.regions import RegionDecay
from rankwise.errors import UserError

if TYPE_CHECKING:
    from rankwise.decay.base import Decay

OrdinaryDecay = Literal["refuse", "replace", "keep"]

_acting: WeakKeyDictionary[Optimizer, WeakSet[Decay]] = WeakKeyDictionary()


class Attachment:
    """Calls a decay once in every step of an optimizer.

    Arguments:
        decay: the decay.
        optimizer: the optimizer, or a wrapper of it.
        ordinary_decay: what becomes of the optimizer's own decay of the same parameters.
    """

    def __init__(self, decay: Decay, optimizer: Any, ordinary_decay: OrdinaryDecay) -> None:
        if ordinary_decay not in get_args(OrdinaryDecay):
            choices = ", ".join(get_args(OrdinaryDecay))
            raise UserError(f"ordinary_decay must be one of {choices}, got {ordinary_decay!r}")
        self.decay = decay
        self.optimizer = unwrapped(optimizer)
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise UserError(
                "LBFGS evaluates the loss many times a step: call decay.add_gradients() at the end of its closure, "
                "unattached, and return the loss plus coefficient * decay.penalty()"
            )
        self.groups = Groups(self.optimizer)
        self.groups.refreshed()
        self._check_held()
        self._check_alone()
        self.manner: Manner = chosen_manner(self.optimizer, decay.decoupled)
        self.taken: dict[nn.Parameter, float] = {}
        self.removed: Removed | None = None
        self.regions: list[RegionDecay] = []
        self._keeps = ordinary_decay == "keep"
        self._displace(ordinary_decay)
        self.groups.refreshed()
        self._early: dict[nn.Parameter, Tensor] = {}
        held = {id(group): group for each in decay.parameters if (group := self.groups.get(each)) is not None}
        pending.attached(self.optimizer, pending.AS_PRODUCTS, held.values())
        self._hooks = StepHooks(self.optimizer, self._before, self._after)
        _acting.setdefault(self.optimizer, WeakSet()).add(decay)

    def remove(self) -> None:
        """End it: no hooks, and the optimizer's own decay where it was."""
        self._hooks.remove()
        pending.detached(self.optimizer, pending.AS_PRODUCTS, forget=True)
        _acting[self.optimizer].discard(self.decay)
        if self.removed is not None:
            self.removed.restore()

    def retake(self, values: Mapping[str, float]) -> None:
        """Put the coefficients that a run took over into a decay that goes on with it."""
        names = {name: parameter for parameter, name in self.decay.parameters.items()}
        unknown = [name for name in values if name not in names]
        if unknown:
            raise UserError(f"the state has coefficients for {listed(unknown)}, which this decay does not act on")
        if self.taken or values:
            self.taken = {names[name]: float(value) for name, value in values.items()}

    def add_early(self) -> None:
        """Add the gradients now, for clipping to see; the step will not add them again."""
        if self.manner == "decoupled":
            raise UserError(
                f"this {type(self.decay).__name__} is decoupled: it moves the parameters and has no part in their "
                "gradients, so there is nothing for clipping to see; make it with decoupled=False"
            )
        if any(parameter.grad is gradient for parameter, gradient in self._early.items()):
            warnings.warn(
                "add_gradients() was called twice for the same gradients, without a step in between: the second call "
                "is ignored (after a step that was skipped, use zero_grad(set_to_none=True))",
                stacklevel=3,
            )
            return
        self._refresh()
        # What a scaler put on a fused optimizer is there during its step alone: gradients are unscaled by now.
        self._apply(Scaling())
        self._early = {parameter: parameter.grad for parameter in self.decay.parameters if parameter.grad is not None}

    # ---- in the step

    def _before(self) -> None:
        self._refresh()
        if self.manner == "coupled" and any(each.grad is gradient for each, gradient in self._early.items()):
            return
        self._apply(Scaling.of(self.optimizer))

    def _after(self) -> None:
        self._early = {}
        self.decay.steps += 1

    def _apply(self, scaling: Scaling) -> None:
        for region in self.regions:
            region.apply(self.groups[region.parameter]["lr"], scaling)
        given = None if self.decay.coefficient is None else self.decay._current()

        def strength(parameter: nn.Parameter) -> float | Tensor:
            if parameter not in self.groups:
                return 0.0  # It does not learn: `_check_held` saw to that.
            coefficient = self.taken.get(parameter, 0.0) if given is None else given
            if self.manner == "coupled" or not coefficient:
                return coefficient
            return self.groups[parameter]["lr"] * coefficient

        self.decay._apply(self.manner, strength, self._alike, scaling)

    def _alike(self, parameter: nn.Parameter) -> Hashable:
        if parameter not in self.groups:
            return None
        return id(self.groups[parameter]), self.taken.get(parameter)

    def _refresh(self) -> None:
        if self.groups.refreshed():
            self._check_held()
        if self._keeps:
            return
        back = [name for each, name in self.decay.parameters.items() if each in self.groups and self._decays(each)]
        if back:
            raise UserError(
                f"the optimizer's own weight decay is back on {listed(back)} (a schedule, or a state that was loaded): "
                "keep their weight_decay at 0, and give a schedule to the decay as coefficient="
            )

    def _decays(self, parameter: nn.Parameter) -> bool:
        return bool(self.groups[parameter].get("weight_decay", 0.0))

    # ---- once

    def _check_held(self) -> None:
        missing = [
            name for each, name in self.decay.parameters.items() if each.requires_grad and each not in self.groups
        ]
        if missing:
            raise UserError(
                f"the optimizer does not hold {listed(missing)}: attach to the one that does, or select other sites; "
                "products whose factors lie in two optimizers cannot be decayed"
            )

    def _check_alone(self) -> None:
        """Refuse a second decay of one kind on the same products, as when a cell of a notebook is run again."""
        for other in _acting.get(self.optimizer, ()):
            if type(other) is type(self.decay):
                known = {(live.name, live.parameters) for live in other.products}
                twice = [live.name for live in self.decay.products if (live.name, live.parameters) in known]
                if twice:
                    raise UserError(
                        f"a {type(other).__name__} acts on {listed(twice)} already, in the steps of this optimizer: "
                        "detach() it first, or give it the sum of the coefficients"
                    )

    def _displace(self, choice: OrdinaryDecay) -> None:
        """Take the parameters out of the optimizer's own decay, or refuse, as was chosen."""
        names = self.decay.parameters
        present = {each: value for each, value in ordinary_decay(self.optimizer, names).items() if value}
        takes_over = self.decay.coefficient is None
        if takes_over or choice != "keep":
            self._refuse_rows()
        if takes_over and not present:
            warnings.warn(
                f"{type(self.decay).__name__} without a coefficient takes over the optimizer's weight decay, and there "
                "is none on these parameters: it has no effect; give coefficient=, or the optimizer a weight_decay",
                stacklevel=4,
            )
        if not takes_over and present and choice == "refuse":
            both = listed(f"{names[each]} (weight_decay={value:g})" for each, value in present.items())
            raise UserError(
                f"two decays would act on {both}: leave out coefficient= to take the optimizer's over, set its "
                "weight_decay to 0 for them (rankwise.param_groups), or attach with ordinary_decay='replace' or 'keep'"
            )
        if not present or (choice == "keep" and not takes_over):
            self._keeps = self._keeps and not takes_over
            return
        self.regions = self._rest(present)
        self.removed = remove(self.optimizer, present)
        if takes_over:
            self.taken = present

    def _refuse_rows(self) -> None:
        """Refuse entries that decay by rows: groups show a weight decay of 0 for them."""
        factors = per_parameter(self.decay.products)
        twice = [
            region.name
            for region in pending.rows_of(self.optimizer)
            if region.parameter in factors and region.reaches(covered(region.parameter, factors[region.parameter]))
        ]
        if twice:
            raise UserError(
                f"two decays would act on {listed(twice)}, whose rows decay already: give rankwise.param_groups 0 "
                "for these products, or attach with a coefficient and ordinary_decay='keep'"
            )

    def _rest(self, present: Mapping[nn.Parameter, float]) -> list[RegionDecay]:
        """The entries of these parameters that no factor covers keep the decay that they had."""
        found = []
        for parameter, factors in per_parameter(self.decay.products).items():
            if parameter not in present:
                continue
            rest = ~covered(parameter, factors)
            if not bool(rest.any()):
                continue
            name, manner = self.decay.parameters[parameter], manner_of(self.optimizer)
            if manner is None:
                raise UserError(
                    f"only a part of {name} is decayed as a product, and how {type(self.optimizer).__name__} would "
                    "decay the rest is not known here: select sites that cover it, or set its weight_decay to 0"
                )
            found.append(RegionDecay(name, parameter, rest * present[parameter], manner))
        return found
