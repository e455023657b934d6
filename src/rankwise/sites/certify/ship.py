"""The table that ships with the package, from the rows of a release run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rankwise.errors import require
from rankwise.sites.certify.reading import switches_read
from rankwise.sites.certify.release import fingerprint
from rankwise.sites.certify.row import Row
from rankwise.sites.certify.tables import lines
from rankwise.sites.registry import built_in


def release_table(found: Sequence[Row]) -> dict[str, Any]:
    """The release certificates: for each governing type its switches and the signatures that were proved.

    With them go the fingerprint of each layout, so that one that is changed later claims nothing, and the line of each
    type in the table for people.
    """
    transformers, torch = require("transformers", extra="hf"), require("torch", extra="hf")
    defaults: dict[str, Mapping[str, Any]] = {}
    proved: dict[str, set[str]] = {}
    homes: dict[str, str] = {}
    for row in found:
        for model_type, facts in (row.defaults or {}).items():
            # Inside another model a type may have other defaults: its own run says which are its own.
            if model_type == row.model_type or model_type not in defaults:
                defaults[model_type] = facts
        for model_type, marks in (row.signatures or {}).items():
            proved.setdefault(model_type, set()).update(marks)
            homes.setdefault(model_type, row.model_type)
    known = transformers.CONFIG_MAPPING.keys()
    # A part that is no type by itself has its code beside the model that it was proved in.
    code = {name: name if name in known else home for name, home in homes.items()}
    types = {name: _entry(code[name], name, defaults.get(name, {}), proved[name]) for name in sorted(proved)}
    return {
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
        "layouts": {layout.name: fingerprint(layout) for layout in built_in()[0]},
        "types": types,
        "lines": [asdict(line) for line in lines(found)],
    }


def _entry(code: str, name: str, defaults: Mapping[str, Any], proved: Iterable[str]) -> dict[str, Any]:
    # What a class of modules matched is filed under its layout, and no configuration says anything of it.
    reads = [] if name.startswith("layout:") else switches_read(code)
    reads = [key for key in reads if key not in defaults]
    return {"defaults": dict(sorted(defaults.items())), "reads": reads, "proved": sorted(proved)}
