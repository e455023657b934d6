"""From a scan record to what the page's script reads: names made safe, numbers made short, nulls shared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rankwise.report.maps import heat_maps
from rankwise.report.packing import packed, rounded, rounded_up
from rankwise.report.quantities import Quantity, quantities, spectrum_length
from rankwise.report.record import Record, finding_places, finding_text, step_of
from rankwise.report.words import CERTIFICATES, METHODS
from rankwise.text import printable

# More points than this cannot be told apart on a plot; the ranks that are kept are shown as such.
LARGEST_PLOTTED = 512
LONGEST_NAME = 160


def page_data(records: Sequence[Record]) -> dict[str, Any]:
    """Everything that is drawn: the quantities, and for each checkpoint its sites, heatmaps and nulls."""
    kinds = quantities(records)
    return {
        "change": records[-1].get("base") is not None,
        "quantities": [
            {"key": one.key, "title": one.title, "formula": one.formula, "meaning": one.meaning}
            | {"family": one.family, "scales": one.scales}
            for one in kinds
        ],
        "words": {"methods": METHODS, "certificates": CERTIFICATES},
        "views": [_view(record, kinds, position) for position, record in enumerate(records)],
    }


def plotted_ranks(count: int) -> list[int]:
    """Which of so many singular values a plot shows: all of them, or the first 64 and then an even choice.

    >>> plotted_ranks(3), len(plotted_ranks(4096)), plotted_ranks(4096)[-1]
    ([0, 1, 2], 512, 4095)
    """
    if count <= LARGEST_PLOTTED:
        return list(range(count))
    kept = 64
    rest = LARGEST_PLOTTED - kept
    return list(range(kept)) + [kept + int(step * (count - 1 - kept) / (rest - 1) + 0.5) for step in range(rest)]


def _view(record: Record, kinds: Sequence[Quantity], position: int) -> dict[str, Any]:
    nulls: dict[str, int] = {}
    sites = [_site(site, kinds, nulls) for site in record["sites"]]
    return {
        "step": step_of(record, position),
        "sites": sites,
        "maps": [asdict(one) for one in heat_maps(record["sites"])],
        "nulls": [json.loads(text) for text in nulls],
        "findings": _findings(record),
    }


def _findings(record: Record) -> list[dict[str, Any]]:
    return [
        {"kind": printable(entry.get("kind", "")), "text": finding_text(entry)}
        | ({"site": None, "head": None} if place is None else {"site": place[0], "head": place[1]})
        for entry, place in zip(record["findings"], finding_places(record), strict=True)
    ]


def _site(site: Record, kinds: Sequence[Quantity], nulls: dict[str, int]) -> dict[str, Any]:
    return {
        "name": printable(site["name"], LONGEST_NAME),
        "kind": printable(site["kind"]),
        "layer": site.get("layer"),
        "widths": [int(width) for width in site["widths"]],
        "certified": printable(site["certified"]),
        "orientation": printable(site.get("orientation", "")),
        "layout": printable(site.get("layout", "")),
        "parameters": [printable(name, LONGEST_NAME) for name in site.get("parameters", [])],
        "notes": [printable(note, 400) for note in site.get("notes", [])],
        "rotary": _rotary(site.get("rotary")),
        "group": [_numbers(group) for group in site.get("group") or []],
        "null": _null(site, kinds, nulls),
        "heads": [_head(site, head, kinds) for head in site["heads"]],
    }


def _rotary(facts: Record | None) -> str | None:
    if not facts:
        return None
    return f"{facts.get('rotated')} dimensions from {facts.get('start', 0)}, {printable(facts.get('pairs'))} pairs"


def _numbers(part: Record | None) -> dict[str, float | None] | None:
    return None if part is None else {printable(key): rounded(value) for key, value in part.items()}


def _head(site: Record, head: Record, kinds: Sequence[Quantity]) -> dict[str, Any]:
    measured = [one.of(site, head) for one in kinds]
    values = head.get("values") or []
    errors = head.get("errors") or [None] * len(values)
    ranks = plotted_ranks(len(values))
    failure = head.get("failure")
    return {
        "head": head["head"],
        "method": printable(head.get("method") or "none"),
        "failure": None if failure is None else printable(failure, 400),
        "count": len(values),
        "values": packed(values[rank] for rank in ranks),
        "errors": packed(errors[rank] for rank in ranks),
        "largest": [rounded(values[0]), rounded_up(errors[0])] if values else None,
        "scale": rounded(head.get("null_scale")),
        "measured": [None if one is None else [rounded(one[0]), rounded_up(one[1])] for one in measured],
        "balance": _numbers(head.get("balance")),
        "pairs": _numbers(head.get("pairs")),
    }


def _null(site: Record, kinds: Sequence[Quantity], nulls: dict[str, int]) -> int | None:
    """The place of the site's null among those of the page: sites of the same widths share one."""
    null = site.get("null") or {}
    measured = [one.null(site) for one in kinds]
    if not null and not any(measured):
        return None
    ranks = plotted_ranks(spectrum_length(site))
    bands = {key: null.get(key) or [] for key in ("values", "low", "high")}
    entry = {
        **{key: packed(band[rank] for rank in ranks if rank < len(band)) for key, band in bands.items()},
        "edge": rounded(null.get("edge")),
        "draws": null.get("draws"),
        "measured": [None if one is None else [rounded(one[0]), rounded_up(one[1])] for one in measured],
    }
    return nulls.setdefault(json.dumps(entry), len(nulls))
