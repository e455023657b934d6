"""What a record says of a site before any number: the keys that scans and runs have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankwise.sites.site import Site


def describe(site: Site, widths: Sequence[int]) -> dict[str, Any]:
    """What a record says of a site before any number."""
    rotary = site.attention.rotary if site.attention is not None else None
    return {
        "name": site.name,
        "kind": site.kind,
        "layer": site.layer,
        "stack": site.stack,
        "batch": [list(axis) for axis in site.batch],
        "widths": list(widths),
        "orientation": site.orientation,
        "layout": site.layout,
        "certified": site.certified,
        "parameters": list(site.parameters),
        "scaling": site.scaling,
        "notes": list(site.notes),
        "rotary": None if rotary is None else {"pairs": rotary.pairs, "rotated": rotary.rotated, "start": rotary.start},
    }
