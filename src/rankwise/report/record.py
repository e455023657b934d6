"""Scan records as they come from disk: what the page can read, and one clear line about what it cannot."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rankwise.errors import UserError
from rankwise.text import printable

FORMAT = "rankwise-scan"
SERIES = "rankwise-series"
VERSION = 1
ATTENTION = ("qk", "ov")

Record = Mapping[str, Any]
"""A JSON object as `docs/scan-format.md` describes it, or a part of one."""

_TOP = {"model": Mapping, "settings": Mapping, "measures": Mapping, "sites": list, "unread": list, "findings": list}
_SITE = {"name": str, "kind": str, "widths": list, "certified": str, "heads": list}
_HEAD = {"head": int, "measures": Mapping}


def checked(given: Record | Sequence[Record]) -> tuple[Record, ...]:
    """The records of a scan, a diff or a series, oldest first; a `UserError` names the first thing that is missing."""
    if isinstance(given, Mapping) and given.get("format") == SERIES:
        given = given.get("scans") or ()
    records = (given,) if isinstance(given, Mapping) else tuple(given)
    if not records:
        raise UserError("there is no scan record to report: give one record, or a series of at least one")
    for record in records:
        _check(record)
    return records


def step_of(record: Record, position: int) -> int:
    """The training step of a checkpoint: as recorded, else the last number of its source, else its place in line."""
    step = record.get("step")
    if isinstance(step, int):
        return step
    numbers = re.findall(r"\d+", str(record.get("source", "")))
    return int(numbers[-1][:15]) if numbers else position


def finding_places(record: Record) -> list[tuple[int, int | None] | None]:
    """For each finding the positions of its site and head (None: the whole site); None where there is no such head."""
    positions = {str(site["name"]): index for index, site in enumerate(record["sites"])}
    places: list[tuple[int, int | None] | None] = []
    for entry in record["findings"]:
        index, head = positions.get(str(entry.get("site"))), entry.get("head")
        exists = index is not None and (head is None or head in range(len(record["sites"][index]["heads"])))
        places.append((index, head) if index is not None and exists else None)
    return places


def finding_text(entry: Record) -> str:
    """What a finding says, without the place and the kind that the page shows before it."""
    text = str(entry.get("text", ""))
    for shown in (f"{entry.get('site')} ", f"head {entry.get('head')} ", f"{entry.get('kind')}: "):
        text = text.removeprefix(shown)
    return printable(text, 400)


def _check(record: object) -> None:
    if not isinstance(record, Mapping) or record.get("format") != FORMAT:
        raise UserError(
            f'this is not a scan record: expected a JSON object with "format": "{FORMAT}" (rankwise scan --json)'
        )
    if record.get("version") != VERSION:
        raise UserError(
            f"a scan record of version {printable(record.get('version'))} cannot be read by this page, "
            f"which reads version {VERSION}: scan again with the installed rankwise"
        )
    _require(record, _TOP, "the record")
    for name in ("unread", "findings"):
        for number, entry in enumerate(record[name]):
            if not isinstance(entry, Mapping):
                raise UserError(
                    f"{name}[{number}] of the scan record is not an object: the file is damaged, scan again"
                )
    for number, site in enumerate(record["sites"]):
        place = f"sites[{number}]"
        if not isinstance(site, Mapping):
            raise UserError(f"{place} of the scan record is not an object: the file is damaged, scan again")
        _require(site, _SITE, place)
        for index, head in enumerate(site["heads"]):
            if not isinstance(head, Mapping):
                raise UserError(f"{place}.heads[{index}] of the scan record is not an object: scan again")
            _require(head, _HEAD, f"{place}.heads[{index}]")


def _require(part: Record, fields: Mapping[str, type], place: str) -> None:
    for name, kind in fields.items():
        if not isinstance(part.get(name), kind):
            found = "is missing" if name not in part else f"is a {type(part[name]).__name__}"
            raise UserError(
                f"{place}: {name!r} {found}, expected {kind.__name__}: the scan record is damaged, scan again"
            )
