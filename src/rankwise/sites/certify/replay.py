"""Call one attention module again and again, with inputs of our choice at its projections."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankwise.sites.certify.calls import Call, mapped
from rankwise.sites.certify.capture import Attention, Capture
from rankwise.sites.site import Site


@dataclass(frozen=True)
class Run:
    """One replay: its attention calls, what each projection was given, what they and the module gave."""

    attentions: list[Attention]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    result: Tensor


class ReplayError(Exception):
    """The module raised when it was called on its own."""


class Replay:
    """A copy of one module in another precision, that runs on its recorded arguments.

    The copy is what makes this safe on a live model: nothing of the model is ever changed.

    Arguments:
        module: the module to copy.
        call: the arguments it was called with.
        dtype: the precision of the copy.
        sites: the sites of the module; the inputs of their projections are what can be replaced.
    """

    def __init__(self, module: nn.Module, call: Call, *, dtype: torch.dtype, sites: Sequence[Site]) -> None:
        self.path, self.dtype = call.path, dtype
        self.module = _made_plain(_of_type(copy.deepcopy(module).eval(), dtype).requires_grad_(False))
        # Cosines and sines that were handed over have the model's own rounding, whatever the copy computes in.
        self.rounding = max(_roundings((call.args, dict(call.kwargs))), default=0.0)
        self._args, self._kwargs = (mapped(each, self._cast) for each in (call.args, dict(call.kwargs)))
        self._paths = {self._owner(site, role) for site in sites for role in _roles(site)} - {""}
        named = self.module.named_parameters(remove_duplicate=False)
        # The names that the sites use, over the copy's tensors.
        self.source = {f"{self.path}.{name}" if self.path else name: parameter.data for name, parameter in named}
        self.plain = self.run()
        if dtype == torch.float64 and not torch.isfinite(self.plain.result).all():
            # A mask of the smallest float32, times zero, where the module asks for the smallest float64.
            raise ReplayError("its output is not finite in float64")

    def key(self, site: Site, role: str) -> str:
        """What a stream is called in `run`.

        The path inside the module of the projection that reads it; a role (`:q`, `:k`, `:v`, `:o`) where one function
        computes the whole attention from the weights; `:x` for the module's first argument, where the weights lie on it
        directly.
        """
        owner = self._owner(site, role)
        if owner in self.plain.inputs:
            return owner
        if ":q" in self.plain.inputs:
            return f":{role}"
        return owner or ":x"

    def _owner(self, site: Site, role: str) -> str:
        factor = site.factors[0 if role in "qo" else -1]
        owner = factor.parameter.rpartition(".")[0]
        return owner[len(self.path) + 1 :] if self.path else owner

    def run(self, streams: Mapping[str, Tensor] | None = None) -> Run:
        """Run once; `streams` replaces the inputs of the given keys, a projection's in its first call only."""
        streams = streams or {}
        inputs: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}
        args, kwargs = self._arguments(streams, inputs)
        with ExitStack() as stack, torch.no_grad():
            for path in sorted(self._paths):
                module = self.module.get_submodule(path)
                before, after = _hooks(path, streams, inputs, outputs)
                stack.enter_context(module.register_forward_pre_hook(before))
                stack.enter_context(module.register_forward_hook(after))
            capture = stack.enter_context(Capture(streams))
            try:
                result = _first(self.module(*args, **kwargs))
            except Exception as error:
                raise ReplayError(f"{type(error).__name__}: {error}") from error
        if capture.output is not None:
            outputs[":o"] = capture.output
        return Run(capture.attentions, inputs | capture.inputs, outputs, result)

    def _arguments(self, streams: Mapping[str, Tensor], inputs: dict[str, Tensor]) -> tuple[tuple, dict[str, Any]]:
        """The recorded arguments, with the stream called `:x` in the place of the first of them."""
        args, kwargs = list(mapped(self._args, torch.clone)), mapped(self._kwargs, torch.clone)
        place: Any = args if args else kwargs
        first = 0 if args else next((name for name, each in kwargs.items() if _is_stream(each)), None)
        if first is not None and _is_stream(place[first]):
            inputs[":x"] = place[first] = streams.get(":x", place[first])
        return tuple(args), kwargs

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor


def _roundings(value: Any) -> list[float]:
    found: list[float] = []

    def note(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            found.append(torch.finfo(tensor.dtype).eps)
        return tensor

    mapped(value, note)
    return found


def _is_stream(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1


def _roles(site: Site) -> str:
    return "qk" if site.kind == "qk" else "vo"


def _hooks(path: str, streams: Mapping[str, Tensor], inputs: dict[str, Tensor], outputs: dict[str, Tensor]):
    def before(_: nn.Module, args: tuple) -> tuple | None:
        if path in inputs or not args:
            return None  # later calls of the same projection read something else, such as positions
        inputs[path] = streams.get(path, args[0])
        return (inputs[path], *args[1:])

    def after(_: nn.Module, __: tuple, output: Any) -> None:
        outputs.setdefault(path, _first(output).detach())

    return before, after


def _first(value: Any) -> Tensor:
    while not isinstance(value, Tensor):
        value = next(each for each in (value.values() if isinstance(value, Mapping) else value) if each is not None)
    return value


def _of_type(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module in another precision; `Module.to` would take the imaginary part from a table of complex angles."""
    for each in module.modules():
        for tensors in (each._parameters, each._buffers):
            for tensor in tensors.values():
                if tensor is not None and tensor.is_floating_point():
                    tensor.data = tensor.data.to(dtype)
    return module


def _made_plain(module: nn.Module) -> nn.Module:
    """Have a copy compute attention in torch's own functions, where it would call a kernel that cannot be seen."""
    configs: list[Any] = [getattr(each, "config", None) for each in module.modules()]
    for config in configs:
        if getattr(config, "_attn_implementation", None) not in (None, "eager", "sdpa"):
            config._attn_implementation = "eager"  # the configuration was copied with the module
    return module
