"""What should not go unnoticed in a run: rank collapse, spikes, dead heads, imbalance, and numbers that are none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

from rankwise.errors import RankwiseError, UserError
from rankwise.product.spectrum import BELOW_FLOOR, UNCHANGED
from rankwise.watch.rows import Row

Kind = Literal["collapsed", "spiked", "dead", "unbalanced", "failed", "diverged"]


class RunStopped(RankwiseError):
    """An alarm has stopped the run, as it was told to: the text is the alarm's."""


@dataclass(frozen=True)
class Alarm:
    """Something that was noticed, or is over.

    Arguments:
        kind: collapsed, spiked, dead, unbalanced, failed or diverged.
        site, head: where; None for the loss.
        text: in one sentence.
        evidence: the numbers behind it, `value` and `threshold` among them.
        cleared: whether it is over.
    """

    kind: Kind
    site: str | None = field(kw_only=True)
    head: int | None = field(kw_only=True)
    text: str = field(kw_only=True)
    evidence: Mapping[str, float] = field(kw_only=True)
    cleared: bool = field(kw_only=True, default=False)

    def record(self) -> dict[str, Any]:
        """The alarm as the run's log holds it."""
        return {**asdict(self), "evidence": {key: _plain(value) for key, value in self.evidence.items()}}


@dataclass(frozen=True, kw_only=True)
class Alarms:
    """The thresholds; None turns an alarm off.

    An alarm is raised when its threshold is passed at `patience` snapshots in a row, and cleared when the value has
    come back by more than `hysteresis` of the threshold: one that hovers there does not ring at every snapshot.

    Arguments:
        collapse: an effective rank below this share of what it was at the run's first snapshot.
        spike: a single direction with more than this share of the energy, where there was none at the start.
        dead: a Frobenius norm below this share of the median of its kind, of what was alive before.
        imbalance: factors whose half-sum exceeds the nuclear norm by more than this share of itself, and by more than
            twice that of the start. For rotary queries and keys the sum over pairs takes the nuclear norm's place, and
            for heads that share a factor the group's counts.
        failed: factors that hold NaN or Inf, or anything else that leaves a product without a spectrum.
        diverged: a loss that is not finite.
        hysteresis: the share of the threshold by which a value has to come back.
        patience: at how many snapshots in a row.
    """

    collapse: float | None = 0.5
    spike: float | None = 0.9
    dead: float | None = 1e-3
    imbalance: float | None = 0.2
    failed: bool = True
    diverged: bool = True
    hysteresis: float = 0.1
    patience: int = 1

    def __post_init__(self) -> None:
        for name in ("collapse", "spike", "dead", "imbalance"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, float) and 0 < value < 1):
                raise UserError(f"Alarms({name}={value!r}): give a share between 0 and 1, or None for no such alarm")
        if not 0 <= self.hysteresis < 1 or self.patience < 1:
            raise UserError(
                f"Alarms(hysteresis={self.hysteresis!r}, patience={self.patience!r}): give a share from 0 on and below "
                "1, and a number of snapshots from 1 on"
            )

    def needs(self) -> dict[str, str]:
        """The measure that each alarm reads."""
        read = {"collapse": "effective_rank", "spike": "stable_rank", "dead": "frobenius_norm"}
        return {name: measure for name, measure in read.items() if getattr(self, name) is not None}


Place = tuple[str, int]
_Key = tuple[str, str, int]


@dataclass(frozen=True)
class _Check:
    """A value on the way to its threshold: `severity` is 1 there and larger beyond."""

    kind: Kind
    severity: float
    text: str
    evidence: Mapping[str, float]


class Watch:
    """Looks at one snapshot after another, and remembers what was raised.

    Arguments:
        alarms: the thresholds.
    """

    def __init__(self, alarms: Alarms) -> None:
        self.alarms = alarms
        self._raised: set[_Key] = set()
        self._times: dict[_Key, int] = {}
        self._lived: set[Place] = set()

    def state_dict(self) -> dict[str, Any]:
        """What was raised, how often something was seen, and what came to life after the start."""
        state = {
            "raised": sorted(map(list, self._raised)),
            "times": sorted([*key, times] for key, times in self._times.items()),
            "lived": sorted(map(list, self._lived)),
        }
        return {key: value for key, value in state.items() if value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._raised = {(kind, site, head) for kind, site, head in state.get("raised", ())}
        self._times = {(kind, site, head): times for kind, site, head, times in state.get("times", ())}
        self._lived = {(site, head) for site, head in state.get("lived", ())}

    def look(self, rows: Iterable[Row], *, start: Mapping[Place, Row], loss: float | None = None) -> list[Alarm]:
        """The alarms of one snapshot.

        Arguments:
            rows: all its rows.
            start: the rows of the run's first snapshot.
            loss: the loss as it was given.
        """
        rows = [row for row in rows if row["of"] in ("product", "group")]
        found = list(self._loss(loss))
        grouped = {row["site"] for row in rows if row["of"] == "group"}
        typical = _typical(rows)
        for row in rows:
            for check in self._checks(row, start.get(place_of(row), {}), typical.get(row["kind"]), grouped):
                key = (check.kind, *place_of(row))
                alarm = self._decide(key, check, row)
                if alarm is not None:
                    found.append(alarm)
        return found

    def _decide(self, key: _Key, check: _Check, row: Row | None) -> Alarm | None:
        raised = key in self._raised
        if check.severity > 1:
            times = self._times.pop(key, 0) + 1
            if raised:
                return None
            if times < self.alarms.patience:
                self._times[key] = times
                return None
            self._raised.add(key)
            return self._alarm(check, row, cleared=False)
        self._times.pop(key, None)
        if not raised or check.severity > 1 - self.alarms.hysteresis:
            return None
        self._raised.discard(key)
        return self._alarm(check, row, cleared=True)

    def _alarm(self, check: _Check, row: Row | None, *, cleared: bool) -> Alarm:
        where = "the loss" if row is None else _named(row)
        return Alarm(
            check.kind,
            site=None if row is None else row["site"],
            head=None if row is None else row["head"],
            text=f"{where} is no longer {check.kind}: {check.text}"
            if cleared
            else f"{where} is {check.kind}: {check.text}",
            evidence=check.evidence,
            cleared=cleared,
        )

    def _loss(self, loss: float | None) -> Iterator[Alarm]:
        if loss is None or not self.alarms.diverged:
            return
        lost = not math.isfinite(loss)
        check = _Check("diverged", 2.0 if lost else 0.0, f"it is {loss:.4g}", {})
        alarm = self._decide(("diverged", "", 0), check, None)
        if alarm is not None:
            yield alarm

    def _checks(self, row: Row, start: Row, typical: float | None, grouped: set[str]) -> Iterator[_Check]:
        alarms = self.alarms
        if row["of"] == "group" or row["site"] not in grouped:
            yield from _imbalance(alarms.imbalance, row, start)
        if row["of"] == "group":
            return
        failure = row.get("failure")
        if alarms.failed:
            severity = 2.0 if failure is not None and not has_no_change(failure) else 0.0
            yield _Check("failed", severity, failure or "it has a spectrum again", {})
        if failure is not None:
            return
        norm = _number(row, "frobenius_norm")
        if alarms.dead is not None and norm is not None and typical:
            least = alarms.dead * typical
            born = norm >= least or (_number(start, "frobenius_norm") or 0.0) >= least
            if born and (_number(start, "frobenius_norm") or 0.0) < least:
                self._lived.add(place_of(row))
            if born or place_of(row) in self._lived:
                yield _Check(
                    "dead",
                    least / norm if norm else math.inf,
                    f"its norm is {norm:.3g}, the median of its kind {typical:.3g}",
                    {"value": norm, "threshold": least, "median": typical},
                )
        rank, before = _number(row, "effective_rank"), _number(start, "effective_rank")
        if alarms.collapse is not None and rank is not None and before:
            least = alarms.collapse * before
            yield _Check(
                "collapsed",
                least / rank if rank else math.inf,
                f"effective rank {rank:.3g}, at the start {before:.3g}",
                {"value": rank, "threshold": least, "start": before},
            )
        stable, before = _number(row, "stable_rank"), _number(start, "stable_rank")
        if alarms.spike is not None and stable and (not before or 1 / before <= alarms.spike):
            yield _Check(
                "spiked",
                1 / stable / alarms.spike,
                f"one direction holds {1 / stable:.0%} of the energy",
                {"value": 1 / stable, "threshold": alarms.spike} | ({"start": 1 / before} if before else {}),
            )


def place_of(row: Mapping[str, Any]) -> Place:
    """Which product or group a row is of."""
    return (row["site"] if row["of"] == "product" else f"{row['site']} {row['of']}", row["head"])


def in_short(alarms: Sequence[Alarm]) -> Iterator[str]:
    """One line for each kind of alarm, however many heads there are.

    >>> alarm = Alarm("dead", site="layers.0.ov", head=3, text="layers.0.ov head 3 is dead: ...", evidence={})
    >>> list(in_short([alarm] * 12))
    ['layers.0.ov head 3 is dead: ... (and 11 more)']
    """
    for kind in dict.fromkeys((alarm.kind, alarm.cleared) for alarm in alarms):
        alike = [alarm for alarm in alarms if (alarm.kind, alarm.cleared) == kind]
        yield alike[0].text + (f" (and {len(alike) - 1} more)" if len(alike) > 1 else "")


def has_no_change(failure: str) -> bool:
    """Whether a product has no spectrum only because it is a change too small to have one."""
    return failure.startswith((UNCHANGED, BELOW_FLOOR.split("{")[0]))


def relative_gap(row: Mapping[str, Any]) -> float | None:
    """By what share of itself the half-sum exceeds the nuclear norm, or the sum over rotary pairs."""
    half_sum, gap, pairs = (_number(row, name) for name in ("half_sum", "gap", "pair_sum"))
    if not half_sum:
        return None
    return (half_sum - pairs) / half_sum if pairs is not None else None if gap is None else gap / half_sum


def _imbalance(threshold: float | None, row: Row, start: Row) -> Iterator[_Check]:
    gap, before = relative_gap(row), relative_gap(start)
    if threshold is None or gap is None:
        return
    most = max(threshold, 2 * (before or 0.0))
    yield _Check(
        "unbalanced",
        gap / most,
        f"its half-sum exceeds its norm by {gap:.0%} of itself, at the start {before or 0.0:.0%}",
        {"value": gap, "threshold": most, "start": before or 0.0},
    )


def _typical(rows: Iterable[Row]) -> dict[str, float]:
    norms: dict[str, list[float]] = {}
    for row in rows:
        norm = _number(row, "frobenius_norm")
        if row["of"] == "product" and norm is not None:
            norms.setdefault(row["kind"], []).append(norm)
    return {kind: median(found) for kind, found in norms.items() if len(found) > 3}


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    return float(value) if value is not None and math.isfinite(value) else None


def _named(row: Row) -> str:
    return f"{row['site']} {'group' if row['of'] == 'group' else 'head'} {row['head']}"


def _plain(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
