"""What a run says of itself before its first snapshot: settings, configuration, environment, sites."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from rankwise.product.catalogue import MEASURES
from rankwise.sites.record import describe
from rankwise.sites.site import Site
from rankwise.watch.rows import columns
from rankwise.watch.start import plain_name


def heading(
    *,
    measures: Sequence[str],
    keep: str,
    base: str | None,
    optimizer: bool,
    settings: Mapping[str, Any],
    config: Mapping[str, Any] | None,
    model: nn.Module,
) -> dict[str, Any]:
    """What `run.json` holds, but for the sites and for what the store adds."""
    about = ("title", "formula", "meaning", "scales")
    return {
        "measures": {name: {key: getattr(MEASURES[name], key) for key in about} for name in measures},
        "keep": keep,
        "base": base,
        "columns": list(columns(measures, optimizer=optimizer)),
        "settings": plain(settings),
        "config": plain(config if config is not None else configuration(model)),
        "environment": environment(model),
    }


def environment(model: nn.Module) -> dict[str, Any]:
    """Where and with what the run computes."""
    parameter = next(model.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "rankwise": version("rankwise"),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "parameters": sum(each.numel() for each in model.parameters()),
        "dtype": None if parameter is None else str(parameter.dtype).removeprefix("torch."),
    }


def configuration(model: nn.Module) -> Any:
    """A model's own configuration, where it carries one."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        return config.to_dict()
    return vars(config) if hasattr(config, "__dict__") else config


def site_records(sites: Iterable[Site], shapes: Mapping[str, tuple[int, ...]]) -> list[dict[str, Any]]:
    """What is known of each site, from the shapes of the parameters alone: no value is read."""
    source = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    records = []
    for site in sites:
        parameters = [plain_name(name) for name in site.parameters]
        about = describe(site, site.product(source).widths)
        records.append(plain(about | {"heads": site.heads, "parameters": parameters}))
    return records


def plain(value: Any) -> Any:
    """A value as JSON holds it: what it has no form for becomes text, and a number that is none becomes null.

    >>> plain({"rate": 0.1, "betas": (0.9, 0.95), "none": float("nan"), "type": torch.float32})
    {'rate': 0.1, 'betas': [0.9, 0.95], 'none': None, 'type': 'torch.float32'}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
