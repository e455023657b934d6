"""How a model calls its attention modules: their arguments, seen in one run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rankwise.sites.certify.direct import direct_arguments
from rankwise.sites.certify.probe import probes
from rankwise.sites.site import Site


@dataclass(frozen=True)
class Call:
    """One call of a module: its path, copies of its arguments, and whose they are where they are not its own."""

    path: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    whose: str = ""


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A nest of tuples, lists and dictionaries with every tensor in it changed."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(mapped(each, change) for each in value)
    if type(value) is dict:
        return {key: mapped(each, change) for key, each in value.items()}
    return value


def record(
    model: nn.Module, paths: Collection[str], inputs: Mapping[str, Any] | None
) -> tuple[dict[str, Call], list[str]]:
    """The first call of each of the named modules and of all that contain them, and what went wrong on the way.

    The model runs in eval mode without gradients; its modes are restored and every hook is removed, whatever happens.

    Arguments:
        model: the model to run.
        paths: paths of modules inside it.
        inputs: keyword arguments of the model's forward; made up from its configuration by default.
    """
    calls: dict[str, Call] = {}
    begun: dict[str, Call] = {}
    wanted = {"", *paths}
    for path in paths:
        parts = path.split(".")
        wanted |= {".".join(parts[:length]) for length in range(1, len(parts))}
    problems: list[str] = []

    def before(path: str) -> Callable:
        def keep(_: nn.Module, args: tuple, kwargs: dict) -> None:
            args, kwargs = (mapped(each, lambda tensor: tensor.detach().clone()) for each in (args, dict(kwargs)))
            begun.setdefault(path, Call(path, args, {key: _without_cache(each) for key, each in kwargs.items()}))

        return keep

    def after(path: str) -> Callable:
        # A call that raised cannot be made again.
        return lambda *_: calls.setdefault(path, begun[path]) and None

    modules = dict(model.named_modules(remove_duplicate=False))
    with ExitStack() as hooks, evaluating(model), torch.no_grad():
        for path in sorted(wanted & modules.keys()):
            hooks.enter_context(modules[path].register_forward_pre_hook(before(path), with_kwargs=True, prepend=True))
            hooks.enter_context(modules[path].register_forward_hook(after(path)))
        for path, given in probes(model, inputs):
            if all(name in calls for name in paths if not path or name == path or name.startswith(f"{path}.")):
                continue
            try:
                modules[path](**given)
            except Exception as error:
                problems.append(
                    f"running {path or 'the model'} on made-up inputs raised {type(error).__name__}: {error}"
                )
    return calls, problems


def candidates(model: nn.Module, calls: Mapping[str, Call], path: str, sites: Sequence[Site]) -> Iterator[Call]:
    """Calls to try for a module: its own, or that of a module just like it (another layer's), or one with made-up
    arguments; and that of the innermost module around it that was called."""
    if path in calls:
        yield calls[path]
    else:
        module = model.get_submodule(path)
        alike = (call for other, call in calls.items() if other and _alike(model.get_submodule(other), module))
        if (call := next(alike, None)) is not None:
            yield replace(call, path=path, whose="called as another layer is")
        for arguments in direct_arguments(module, sites):
            yield Call(path, (), arguments, whose="on made-up arguments")
    while path:
        path = path.rpartition(".")[0]
        if path in calls:
            yield calls[path]
            return


def _alike(one: nn.Module, two: nn.Module) -> bool:
    shapes = [{name: each.shape for name, each in module.named_parameters()} for module in (one, two)]
    return type(one) is type(two) and shapes[0] == shapes[1]


@contextmanager
def evaluating(model: nn.Module):
    """Eval mode inside, every module's own mode again outside."""
    training = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in training:
            module.training = mode


def _without_cache(value: Any) -> Any:
    # A cache would grow with every replay, and the keys of earlier ones would come back.
    return None if any("Cache" in kind.__name__ for kind in type(value).__mro__) else value
