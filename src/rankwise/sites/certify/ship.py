"""The table that ships with the package, from the rows of a release run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rankwise.errors import require
from rankwise.sites.certify.reading import switches_read
from rankwise.sites.certify.row import Row


def release_table(found: Iterable[Row]) -> dict[str, Any]:
    """The release certificates: for each governing type its switches and the signatures that were proved."""
    transformers, torch = require("transformers", extra="hf"), require("torch", extra="hf")
    defaults: dict[str, Mapping[str, Any]] = {}
    proved: dict[str, set[str]] = {}
    for row in found:
        for model_type, facts in (row.defaults or {}).items():
            # Inside another model a type may have other defaults: its own run says which are its own.
            if model_type == row.model_type or model_type not in defaults:
                defaults[model_type] = facts
        for model_type, marks in (row.signatures or {}).items():
            proved.setdefault(model_type, set()).update(marks)
    types = {name: _entry(name, defaults.get(name, {}), proved[name]) for name in sorted(proved)}
    return {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "types": types}


def _entry(model_type: str, defaults: Mapping[str, Any], proved: Iterable[str]) -> dict[str, Any]:
    # What a class of modules matched is filed under its layout, and no configuration says anything of it.
    reads = [] if model_type.startswith("layout:") else switches_read(model_type)
    reads = [key for key in reads if key not in defaults]
    return {"defaults": dict(sorted(defaults.items())), "reads": reads, "proved": sorted(proved)}
