"""Copies of the parameters that a monitor watches, taken between two steps of the training."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rankwise.errors import RankwiseError, UserError
from rankwise.product.product import REAL_TYPES
from rankwise.sites.source import tensor_of

# One set of copies is filled while another is computed with.
SETS = 2
# A worker that takes longer than this with what it has is stuck, on a disk that does not answer for instance: training
# goes on without it.
PATIENCE_SECONDS = 60.0


class StuckError(RankwiseError):
    """The snapshots before are still being computed or written."""


@dataclass
class Copies:
    """The tensors of one snapshot by name; the memory is used again once they are released.

    Arguments:
        tensors: the copies.
        missing: why there is none of a parameter.
        ready: for each GPU, the moment from which on its copies are there.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    ready: dict[torch.device, torch.cuda.Event] = field(default_factory=dict)


class Capture:
    """Takes copies of named parameters of a live model, found anew each time: a parameter may have been replaced.

    Arguments:
        names: which parameters.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(dict.fromkeys(names))
        self._free: list[Copies] = []
        self._made = 0
        self._is_stuck = False
        self._returned = threading.Condition()

    @torch.no_grad()
    def take(self, model: nn.Module, *, gradients: bool = False) -> Copies:
        """Copy the parameters, or their gradients; waits where all sets of copies are still computed with."""
        copies = self._set()
        try:
            same: dict[int, Tensor] = {}
            copies.missing = {}
            for name in self.names:
                try:
                    tensor = _readable(model, name, gradients=gradients)
                except UserError as error:
                    copies.missing[name] = str(error)
                    copies.tensors.pop(name, None)
                    continue
                if id(tensor) in same:  # Tied: one copy serves both names.
                    copies.tensors[name] = same[id(tensor)]
                    continue
                kept = copies.tensors.get(name)
                fits = kept is not None and not any(kept is each for each in same.values()) and _alike(kept, tensor)
                # Empty-like keeps the strides, which views are taken by.
                copy = kept if fits and kept is not None else torch.empty_like(tensor)
                copies.tensors[name] = same[id(tensor)] = copy.copy_(tensor)
            copies.ready = _mark(copies.tensors)
        except BaseException:
            self.release(copies)
            raise
        return copies

    def release(self, copies: Copies) -> None:
        """Give the memory back."""
        with self._returned:
            self._free.append(copies)
            self._returned.notify()

    def _set(self) -> Copies:
        with self._returned:
            if not self._free and self._made < SETS:
                self._made += 1
                return Copies()
            patience = 0.0 if self._is_stuck else PATIENCE_SECONDS
            self._is_stuck = not self._returned.wait_for(lambda: bool(self._free), patience)
            if self._is_stuck:
                raise StuckError("the snapshots before it are still being computed or written")
            return self._free.pop()


def live(model: nn.Module, names: Iterable[str]) -> Mapping[str, Tensor]:
    """The parameters of a model by name, those that can be read."""
    found = {}
    for name in names:
        try:
            found[name] = _readable(model, name).detach()
        except UserError:
            continue
    return found


def _readable(model: nn.Module, name: str, *, gradients: bool = False) -> Tensor:
    """A parameter or its gradient, or the reason why it cannot be read."""
    tensor, _ = tensor_of(model, name)
    if gradients:
        if tensor.grad is None:
            raise UserError(f"{name} has no gradient: call monitor.step before optimizer.zero_grad()")
        tensor = tensor.grad
    if hasattr(tensor, "placements"):
        raise UserError(f"{name} is sharded over processes, which the monitor does not read yet")
    if tensor.dtype not in REAL_TYPES or tensor.layout is not torch.strided:
        raise UserError(f"{name} is {tensor.dtype}, {tensor.layout}: give dense real numbers")
    if tensor.device.type == "meta":
        raise UserError(f"{name} is on the meta device: it has no values yet")
    return tensor


def _alike(copy: Tensor, tensor: Tensor) -> bool:
    return (copy.shape, copy.dtype, copy.device, copy.stride()) == (
        tensor.shape,
        tensor.dtype,
        tensor.device,
        tensor.stride(),
    )


def _mark(tensors: Mapping[str, Tensor]) -> dict[torch.device, torch.cuda.Event]:
    """On GPUs, the moments from which on the copies are there."""
    events = {}
    for device in {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}:
        events[device] = torch.cuda.Event()
        events[device].record(torch.cuda.current_stream(device))
    return events
