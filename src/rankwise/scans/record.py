"""What a scan writes down, apart from the sites themselves: docs/scan-format.md describes it key by key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from rankwise.product.catalogue import MEASURES
from rankwise.scans.settings import Settings
from rankwise.sites.sites import Unread

FORMAT, VERSION = "rankwise-scan", 1


def heading(
    source: str,
    *,
    base: str | None,
    config: Mapping[str, Any] | None,
    settings: Settings,
    notes: Iterable[str],
    complete: bool,
) -> dict[str, Any]:
    """The record down to its measures: what was scanned, how, and with what."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "rankwise": version("rankwise"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "source": source,
        "base": base,
        "step": None,
        "model": _model(config),
        "settings": settings.record(),
        "notes": list(notes),
        "complete": complete,
        "measures": measure_records(settings.measures),
    }


def measure_records(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What each measure is, for whoever reads the record without the library."""
    keys = ("title", "formula", "meaning", "scales")
    return {name: {key: getattr(MEASURES[name], key) for key in keys} for name in names}


def unread_record(each: Unread) -> dict[str, Any]:
    """A parameter that was not read."""
    return {"parameter": each.parameter, "shape": list(each.shape), "reason": each.reason}


def _model(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The configuration's plain entries: enough to say what the sizes came from."""
    if config is None:
        return {"type": None, "config": {}}
    kind = config.get("model_type")
    return {
        "type": kind if isinstance(kind, str) else None,
        "config": {str(key): value for key, value in config.items() if _plain(value)},
    }


def _plain(value: Any) -> bool:
    # JSON in files may hold NaN and Infinity, which JSON proper does not.
    return isinstance(value, int | str | bool) or (isinstance(value, float) and math.isfinite(value))
