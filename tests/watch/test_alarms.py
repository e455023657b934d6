from __future__ import annotations

import json
import math
from typing import Any

import pytest

from rankwise.errors import UserError
from rankwise.watch.alarms import Alarm, Alarms, Watch, place_of
from rankwise.watch.rows import Row

HEALTHY = {
    "failure": None,
    "frobenius_norm": 2.0,
    "effective_rank": 40.0,
    "stable_rank": 20.0,
    "half_sum": 10.0,
    "gap": 0.5,
    "pair_sum": None,
}


def rows(*heads: dict[str, Any], of: str = "product", site: str = "layers.0.qk") -> list[Row]:
    facts = {"of": of, "site": site, "kind": "qk", "layer": 0}
    return [facts | HEALTHY | head | {"head": number} for number, head in enumerate(heads)]


def seen(watch: Watch, *snapshots: list[Row], losses: tuple[float, ...] = ()) -> list[list[Alarm]]:
    start = {place_of(row): row for row in snapshots[0]}
    told = []
    for number, snapshot in enumerate(snapshots):
        loss = losses[number] if losses else None
        told.append(watch.look(snapshot, start=start, loss=loss))
    return told


def short(told: list[list[Alarm]]) -> list[list[tuple[str, int | None, bool]]]:
    return [[(alarm.kind, alarm.head, alarm.cleared) for alarm in alarms] for alarms in told]


def test_a_healthy_run_is_quiet():
    assert seen(Watch(Alarms()), *[rows({}, {}, {}, {})] * 3) == [[], [], []]


def test_a_collapse_is_told_once_and_again_when_it_is_over():
    ranks = (40, 21, 19.9, 5, 20.5, 21, 22.5, 19, 40)
    told = seen(Watch(Alarms(hysteresis=0.1)), *(rows({"effective_rank": rank}) for rank in ranks))
    # Half of 40 is 20. It is over above 20 / 0.9 = 22.2, not at 20.5 or 21.
    alarm, over = ("collapsed", 0, False), ("collapsed", 0, True)
    assert short(told) == [[], [], [alarm], [], [], [], [over], [alarm], [over]]
    assert told[2][0].text == "layers.0.qk head 0 is collapsed: effective rank 19.9, at the start 40"
    assert told[2][0].evidence == {"value": 19.9, "threshold": 20.0, "start": 40.0}
    assert told[6][0].text == "layers.0.qk head 0 is no longer collapsed: effective rank 22.5, at the start 40"


def test_patience_waits_for_several_in_a_row():
    ranks = (40, 10, 40, 10, 10, 10, 10)
    told = seen(Watch(Alarms(patience=3)), *(rows({"effective_rank": rank}) for rank in ranks))
    assert [bool(alarms) for alarms in told] == [False, False, False, False, False, True, False]


def test_a_spike_is_told_where_there_was_none():
    before = rows({"stable_rank": 20.0}, {"stable_rank": 1.2})
    told = seen(Watch(Alarms()), before, rows({"stable_rank": 1.05}, {"stable_rank": 1.01}))
    assert short(told) == [[], [("spiked", 0, False), ("spiked", 1, False)]]
    told = seen(Watch(Alarms(spike=0.5)), before, rows({"stable_rank": 1.5}, {"stable_rank": 1.01}))
    assert short(told) == [[], [("spiked", 0, False)]]
    assert told[1][0].text == "layers.0.qk head 0 is spiked: one direction holds 67% of the energy"


def test_a_head_dies_but_one_that_never_lived_does_not():
    def norms(*values: float) -> list[Row]:
        return rows(*({"frobenius_norm": value} for value in values), {}, {}, {}, {})

    watch = Watch(Alarms())
    start = norms(2.0, 0.0)
    told = seen(watch, start, norms(1e-4, 0.0), norms(1e-4, 1.0), norms(1.0, 1e-9))
    dead, over = ("dead", 0, False), ("dead", 0, True)
    assert short(told) == [[], [dead], [], [over, ("dead", 1, False)]]
    assert watch.state_dict() == {"raised": [["dead", "layers.0.qk", 1]], "lived": [["layers.0.qk", 1]]}


def test_few_heads_have_no_typical_norm():
    assert short(seen(Watch(Alarms()), rows({}, {}), rows({"frobenius_norm": 0.0}, {}))) == [[], []]


@pytest.mark.parametrize(
    ("start", "now", "rings"),
    [
        ({"gap": 0.5}, {"gap": 2.1}, True),
        ({"gap": 0.5}, {"gap": 1.9}, False),
        # An adapter starts with one factor at zero: its gap cannot grow.
        ({"gap": 10.0}, {"gap": 9.9}, False),
        ({"gap": 2.0}, {"gap": 3.9}, False),
        # Rotary queries and keys are balanced in pairs: the gap to the nuclear norm says nothing.
        ({"gap": 0.5, "pair_sum": 9.9}, {"gap": 5.0, "pair_sum": 9.5}, False),
        ({"gap": 0.5, "pair_sum": 9.9}, {"gap": 0.5, "pair_sum": 7.5}, True),
        ({"gap": 0.5}, {"gap": None}, False),
    ],
)
def test_imbalance_that_grows(start, now, rings):
    told = seen(Watch(Alarms()), rows(start), rows(now))
    assert bool(told[1]) == rings


def test_heads_that_share_a_factor_are_balanced_as_a_group():
    start = rows({"gap": 0.5}, {"gap": 0.5}) + rows({"gap": 0.5, "effective_rank": None}, of="group")
    loose = rows({"gap": 6.0}, {"gap": 6.0}) + rows({"gap": 0.5, "effective_rank": None}, of="group")
    both = rows({"gap": 6.0}, {"gap": 6.0}) + rows({"gap": 6.0, "effective_rank": None}, of="group")
    told = seen(Watch(Alarms()), start, loose, both)
    assert short(told) == [[], [], [("unbalanced", 0, False)]]
    assert told[2][0].text.startswith("layers.0.qk group 0 is unbalanced: its half-sum exceeds its norm by 60%")


def test_failures_are_told_and_changes_that_are_none_are_not():
    lost = {"failure": "a factor holds NaN or Inf", "effective_rank": math.nan, "frobenius_norm": math.nan}
    told = seen(Watch(Alarms()), rows({}), rows(lost), rows(lost), rows({}))
    assert short(told) == [[], [("failed", 0, False)], [], [("failed", 0, True)]]
    still = rows({"failure": "unchanged: the change is exactly zero, it has no rank"}, of="change")
    assert seen(Watch(Alarms()), still, still) == [[], []]


def test_a_loss_that_is_no_number():
    told = seen(Watch(Alarms()), *[rows({})] * 4, losses=(2.0, math.inf, math.nan, 1.0))
    assert short(told) == [[], [("diverged", None, False)], [], [("diverged", None, True)]]
    assert told[1][0].text == "the loss is diverged: it is inf"
    assert not any(seen(Watch(Alarms(diverged=False)), *[rows({})] * 2, losses=(2.0, math.nan)))


def test_alarms_that_are_off_are_quiet():
    off = Alarms(collapse=None, spike=None, dead=None, imbalance=None, failed=False, diverged=False)
    assert off.needs() == {}
    bad = {"effective_rank": 0.1, "stable_rank": 1.0, "frobenius_norm": 0.0, "gap": 10.0}
    lost = rows(bad, {"failure": "a factor holds NaN or Inf"}, {}, {}, {})
    assert not any(seen(Watch(off), rows({}, {}, {}, {}, {}), lost))


def test_what_was_raised_outlives_the_process():
    ranks = [40.0, 10.0, 10.0, 40.0, 10.0, 10.0]
    snapshots = [rows({"effective_rank": rank}) for rank in ranks]
    start = {place_of(row): row for row in snapshots[0]}
    for stop in range(1, len(snapshots)):
        one = Watch(Alarms(patience=2))
        told = [one.look(each, start=start) for each in snapshots[:stop]]
        two = Watch(Alarms(patience=2))
        two.load_state_dict(json.loads(json.dumps(one.state_dict())))
        told += [two.look(each, start=start) for each in snapshots[stop:]]
        assert short(told) == [
            [],
            [],
            [("collapsed", 0, False)],
            [("collapsed", 0, True)],
            [],
            [("collapsed", 0, False)],
        ], stop


def test_an_alarm_is_plain_json():
    (alarm,) = seen(Watch(Alarms()), rows({}), rows({"effective_rank": 0.0}))[1]
    assert json.loads(json.dumps(alarm.record(), allow_nan=False))["evidence"]["value"] == 0


@pytest.mark.parametrize(
    "given", [{"collapse": 2}, {"dead": 0}, {"spike": "much"}, {"hysteresis": 1.0}, {"patience": 0}]
)
def test_bad_thresholds_are_one_line(given):
    with pytest.raises(UserError, match=r"^Alarms\(.*: give a share") as caught:
        Alarms(**given)
    assert "\n" not in str(caught.value)
