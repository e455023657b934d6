"""What a monitor is told, checked: which sites of which model, when, and what to do about alarms."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

from torch import nn

from rankwise.errors import UserError
from rankwise.sites.find import find
from rankwise.sites.site import Site
from rankwise.sites.sites import Sites
from rankwise.watch.alarms import Alarm, Alarms, Watch
from rankwise.watch.schedules import Every, Overhead, Schedule
from rankwise.watch.start import plain_name

DEFAULT_OVERHEAD = 0.005

OnAlarm = Literal["log", "stop"] | Callable[[Alarm], None]

log = logging.getLogger("rankwise")


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside torch.compile's and distributed training's wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def schedule_of(every: int | Schedule | None, overhead: float | None) -> Schedule:
    """When to record: the schedule that is given, every so many steps, or as often as a share of the time allows."""
    if every is not None and overhead is not None:
        raise UserError("give every= or overhead=, not both: one says when, the other finds out")
    if isinstance(every, Schedule):
        return every
    return Overhead(DEFAULT_OVERHEAD if overhead is None else overhead) if every is None else Every(every)


def checked_reaction(on_alarm: OnAlarm) -> OnAlarm:
    """What to do about an alarm, if it is something that can be done."""
    if not (callable(on_alarm) or on_alarm in ("log", "stop")):
        raise UserError(f"on_alarm={on_alarm!r}: give 'log', 'stop' or a function that takes an alarm")
    return on_alarm


def watch_of(alarms: Alarms | None, measures: Sequence[str]) -> Watch | None:
    """What looks for alarms, or None; thresholds on measures that are not recorded warn."""
    if alarms is None:
        return None
    for name, needed in alarms.needs().items():
        if needed not in measures:
            log.warning("Alarms(%s=...) has no effect: %s is not among the measures", name, needed)
    return Watch(alarms)


def selected(model: nn.Module, sites: Sites | None) -> tuple[Site, ...]:
    """The sites to watch, each under the name that it has without compilation."""
    found = find(model).select(where=lambda site: len(site.factors) > 1) if sites is None else sites
    if not isinstance(found, Sites):
        raise UserError(f"sites= takes Sites, got {type(found).__name__}: give rankwise.find(model).select(kind=...)")
    if not len(found):
        raise UserError(
            "there is nothing to watch: no product of two factors or more; see rankwise.find(model).unread, or give "
            "sites=rankwise.find(model) for single matrices"
        )
    return tuple(site.renamed(plain_name(site.name)) for site in found)
