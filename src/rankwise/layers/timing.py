"""How long a layer takes here, dense and factorized, at the shapes that a model feeds it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankwise.errors import UserError
from rankwise.layers.cost import Step

ROUNDS = 5
WARM_UP = 2
# A layer is timed for this long at most, however slow it is.
SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of a forward and backward pass on one device, the best of several rounds taken in turns.

    A way that a layer has not takes infinitely long.
    """

    dense: float
    two_step: float
    one_step: float
    device: str

    @property
    def faster(self) -> Step:
        return "two-step" if self.two_step <= self.one_step else "one-step"

    @property
    def share(self) -> float:
        """The time of the faster way over that of the dense layer."""
        return min(self.two_step, self.one_step) / self.dense

    def __str__(self) -> str:
        verdict = f"{1 / self.share:.2f} x faster" if self.share <= 1 else f"{self.share:.2f} x slower"
        return f"{verdict}, {self.faster}"


@torch.no_grad()
def inputs_of(model: nn.Module, names: Sequence[str], inputs: Any) -> dict[str, Tensor]:
    """What each of the named layers is fed when the model runs on some inputs; layers that are not run are left out.

    Arguments:
        inputs: a tensor, a sequence of positional arguments, or a mapping of keyword arguments.
    """
    seen: dict[str, Tensor] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            seen.setdefault(name, next(iter((*arguments, *named.values()))).detach().clone())

        return hook

    handles = [model.get_submodule(name).register_forward_pre_hook(note(name), with_kwargs=True) for name in names]
    training = [module for module in model.modules() if module.training]
    # In evaluation nothing is counted or dropped: the statistics of normalization layers stay as they are.
    model.eval()
    try:
        if isinstance(inputs, Mapping):
            model(**inputs)
        elif isinstance(inputs, Sequence):
            model(*inputs)
        else:
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
        for module in training:
            module.training = True
    if not seen:
        raise UserError("none of the layers to measure is run on these inputs: give what the model is trained on")
    return seen


def measure(dense: nn.Module, factorized: Any, input: Tensor) -> Timing:
    """Time a dense layer and the ways through its factorized form, forward and backward.

    Arguments:
        dense: the layer as it is.
        factorized: its factorized form, on the same device; it is left with the faster way. One that has a single
            way, its weight rebuilt, has no `execution`.
        input: what it is fed.
    """
    chooses = hasattr(factorized, "execution")
    ways = ("dense", "two-step", "one-step") if chooses else ("dense", "one-step")
    best = dict.fromkeys(("dense", "two-step", "one-step"), float("inf"))
    if input.is_floating_point():
        input = input.requires_grad_()
    started = time.perf_counter()
    for turn in range(ROUNDS + WARM_UP):
        if turn > WARM_UP and time.perf_counter() - started > SECONDS:
            break
        for way in ways:
            if way != "dense" and chooses:
                factorized.execution = way
            spent = _pass(dense if way == "dense" else factorized, input)
            if turn >= WARM_UP:
                best[way] = min(best[way], spent)
    timing = Timing(dense=best["dense"], two_step=best["two-step"], one_step=best["one-step"], device=str(input.device))
    if chooses:
        factorized.execution = timing.faster
    return timing


def _pass(module: nn.Module, input: Tensor) -> float:
    wanted = [parameter for parameter in (input, *module.parameters()) if parameter.requires_grad]
    _finish(input)
    start = time.perf_counter()
    with torch.enable_grad():
        output = module(input)
        if wanted:
            torch.autograd.grad(output, wanted, torch.ones_like(output))
    _finish(input)
    return time.perf_counter() - start


def _finish(tensor: Tensor) -> None:
    if tensor.device.type != "cpu":
        torch.accelerator.synchronize(tensor.device)
