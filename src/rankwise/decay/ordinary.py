"""The weight decay that an optimizer applies by itself: what it is, and taking parameters out of it by identity."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from rankwise.decay.lamb import Lamb
from rankwise.errors import UserError

Manner = Literal["coupled", "decoupled"]

_DECOUPLED = ("AdamW", "Muon", "Adafactor")
_COUPLED = ("SGD", "Adam", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "ASGD")


def manner_of(optimizer: Optimizer) -> Manner | None:
    """How an optimizer decays weights: into the gradient, or as a step of its own; None where that is not known.

    >>> manner_of(torch.optim.AdamW([torch.zeros(1, requires_grad=True)]))
    'decoupled'
    """
    flags = {
        bool(group["decoupled_weight_decay"]) for group in optimizer.param_groups if "decoupled_weight_decay" in group
    }
    if len(flags) == 1:
        return "decoupled" if flags.pop() else "coupled"
    kinds: tuple[tuple[Manner, tuple[str, ...]], ...] = (("decoupled", _DECOUPLED), ("coupled", _COUPLED))
    for manner, names in kinds:
        if isinstance(optimizer, tuple(kind for name in names if (kind := getattr(torch.optim, name, None)))):
            return manner
    return None


def chosen_manner(optimizer: Optimizer, decoupled: bool | None) -> Manner:
    """What the user asks for, else what the optimizer does by itself."""
    if decoupled is not None:
        return "decoupled" if decoupled else "coupled"
    manner = manner_of(optimizer)
    if manner is None and isinstance(optimizer, Lamb):
        raise UserError(
            f"{type(optimizer).__name__} decays weights inside its trust ratio, where nothing can be attached: take "
            "FLAMBe for Frobenius decay there, or say decoupled=True or False for a decay beside it"
        )
    if manner is None:
        raise UserError(
            f"how {type(optimizer).__name__} decays weights is not known here: say decoupled=True (a step of its own, "
            "scaled by the learning rate, as AdamW does) or decoupled=False (added to the gradient, as SGD does)"
        )
    return manner


@dataclass
class Removed:
    """Parameters that were taken out of an optimizer's own weight decay, and how to put them back.

    Arguments:
        optimizer: whose.
        values: the decay that each of them had.
    """

    optimizer: Optimizer
    values: Mapping[nn.Parameter, float]

    def restore(self) -> None:
        """Give each parameter's group its weight decay back; groups stay split, so that a scheduler keeps its count."""
        for group in self.optimizer.param_groups:
            values = {self.values[parameter] for parameter in group["params"] if parameter in self.values}
            if len(values) == 1:
                group["weight_decay"] = values.pop()


def ordinary_decay(optimizer: Optimizer, parameters: Collection[nn.Parameter]) -> dict[nn.Parameter, float]:
    """The weight decay that the optimizer would apply to each of the parameters."""
    wanted = set(parameters)
    return {
        parameter: float(group.get("weight_decay", 0.0))
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter in wanted
    }


def remove(optimizer: Optimizer, parameters: Collection[nn.Parameter]) -> Removed:
    """Set the weight decay of these parameters, and of no others, to zero; groups that hold others too are split.

    Splitting keeps every other option of a group. It is refused once a learning-rate scheduler is there, because
    schedulers remember how many groups there were.
    """
    values = ordinary_decay(optimizer, parameters)
    wanted = {parameter for parameter, value in values.items() if value}
    split = [
        group
        for group in optimizer.param_groups
        if wanted & set(group["params"]) and not set(group["params"]) <= wanted
    ]
    if split and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        raise UserError(
            "a learning-rate scheduler already counts the optimizer's groups, and a group has to be split: attach the "
            "decay before the scheduler is made"
        )
    for group in list(optimizer.param_groups):
        inside = [parameter for parameter in group["params"] if parameter in wanted]
        if not inside:
            continue
        if not any(group is each for each in split):
            _undecayed(group)
            continue
        optimizer.param_groups.append(_taken_out(group, wanted))
    return Removed(optimizer, values)


def _taken_out(group: dict[str, Any], wanted: set[nn.Parameter]) -> dict[str, Any]:
    """A new group with those of a group's parameters that are wanted, without weight decay."""
    chosen = [parameter in wanted for parameter in group["params"]]
    new = {key: value for key, value in group.items() if key not in ("params", "param_names")}
    for key in ("params", "param_names"):
        if key in group:
            new[key] = [each for each, take in zip(group[key], chosen, strict=True) if take]
            group[key] = [each for each, take in zip(group[key], chosen, strict=True) if not take]
    if "name" in group:
        new["name"] = f"{group['name']}, as products"
    _undecayed(new)
    return new


def _undecayed(group: dict[str, Any]) -> None:
    group["weight_decay"] = 0.0
    if group.get("adapted") == "decayed":
        # Lamb's groups with a weight decay have a trust ratio: they keep it.
        group["adapted"] = "all"
