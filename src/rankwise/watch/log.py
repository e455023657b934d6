"""The commit log of a run: one line for each snapshot, and one for each that is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rankwise.errors import UserError


@dataclass(frozen=True)
class Entry:
    """A snapshot that is safe, or a gap with its reason.

    Arguments:
        step: the training step.
        time: when it was taken, in seconds since 1970.
        kind: "snapshot" or "gap".
        loss: as it was given; None where it was not, or was not finite.
        rows: the first byte of the snapshot's rows in `products.csv`, and the one behind the last.
        spectra: whether `spectra/` has a file for it.
        reason: of a gap, why there is no snapshot.
        alarms: what was raised or cleared at this step.
        seconds: what the snapshot cost: `step` on the training's thread, `worker` on its own.
        state: what schedules, alarms and the count of decay need to go on from here.
    """

    step: int
    time: float = field(kw_only=True)
    kind: Literal["snapshot", "gap"] = field(kw_only=True, default="snapshot")
    loss: float | None = field(kw_only=True, default=None)
    rows: tuple[int, int] = field(kw_only=True, default=(0, 0))
    spectra: bool = field(kw_only=True, default=False)
    reason: str | None = field(kw_only=True, default=None)
    alarms: tuple[Mapping[str, Any], ...] = field(kw_only=True, default=())
    seconds: Mapping[str, float] = field(kw_only=True, default_factory=dict)
    state: Mapping[str, Any] = field(kw_only=True, default_factory=dict)

    def line(self) -> bytes:
        """The entry as a line of JSON; what is empty is left out.

        >>> Entry(3, time=1.0, rows=(0, 9)).line()
        b'{"step":3,"kind":"snapshot","time":1.0,"loss":null,"rows":[0,9],"spectra":false}\\n'
        """
        content: dict[str, Any] = {"step": self.step, "kind": self.kind, "time": self.time}
        if self.kind == "gap":
            content["reason"] = self.reason
        else:
            content |= {"loss": self.loss, "rows": list(self.rows), "spectra": self.spectra}
        content |= {key: value for key in ("alarms", "seconds", "state") if (value := getattr(self, key))}
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def read_entry(line: bytes) -> Entry:
    """The entry of a line, or a `UserError` with what is wrong with it."""
    try:
        content = json.loads(line)
        rows = tuple(int(edge) for edge in content.get("rows", (0, 0)))
        entry = Entry(
            content["step"],
            time=content["time"],
            kind=content["kind"],
            loss=content.get("loss"),
            rows=(rows[0], rows[1]),
            spectra=content.get("spectra", False),
            reason=content.get("reason"),
            alarms=tuple(content.get("alarms", ())),
            seconds=content.get("seconds", {}),
            state=content.get("state", {}),
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise UserError(f"not a line of a run's log: {line[:60]!r}") from None
    if entry.kind not in ("snapshot", "gap") or not isinstance(entry.step, int) or not 0 <= rows[0] <= rows[1]:
        raise UserError(f"not a line of a run's log: {line[:60]!r}")
    return entry


def read_log(content: bytes) -> tuple[list[Entry], list[str]]:
    """The entries of a log, their steps rising, and what had to be left out of it.

    >>> entries, dropped = read_log(Entry(1, time=0.0).line() + b'{"step":2,"ki')
    >>> [entry.step for entry in entries], dropped
    ([1], ['the log ended in the middle of a line'])
    """
    *lines, rest = content.split(b"\n")
    dropped = ["the log ended in the middle of a line"] if rest else []
    entries: list[Entry] = []
    for number, line in enumerate(lines, 1):
        try:
            entry = read_entry(line)
        except UserError:
            dropped.append(f"line {number} of the log cannot be read")
            continue
        if entries and entry.step <= entries[-1].step:
            dropped.append(f"line {number} of the log repeats step {entry.step}")
            continue
        entries.append(entry)
    return entries, dropped
