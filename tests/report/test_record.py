"""Which records the page reads, and the one line about those that it cannot."""

from __future__ import annotations

import copy

import pytest

from rankwise.errors import UserError
from rankwise.report.record import checked, finding_places, finding_text, step_of
from tests.report import records


def test_a_scan_is_a_series_of_one():
    record = records.scan([])
    assert checked(record) == (record,)
    assert checked([record, record]) == (record, record)
    assert checked({"format": "rankwise-series", "version": 1, "scans": [record]}) == (record,)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "something"}, 'expected a JSON object with "format": "rankwise-scan"'),
        ({"version": 2}, "a scan record of version 2 cannot be read by this page, which reads version 1"),
        ({"sites": {}}, "the record: 'sites' is a dict, expected list"),
        ({"sites": [1]}, r"sites\[0\] of the scan record is not an object"),
        ({"sites": [{"name": "a"}]}, r"sites\[0\]: 'kind' is missing, expected str"),
        ({"unread": ["name"]}, r"unread\[0\] of the scan record is not an object"),
        ({"findings": [None]}, r"findings\[0\] of the scan record is not an object"),
    ],
)
def test_what_cannot_be_read_is_named_in_one_line(change, said):
    with pytest.raises(UserError, match=said) as caught:
        checked(records.scan([]) | change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", ["head", "measures"])
def test_a_damaged_head_is_found_by_its_place(part):
    record = copy.deepcopy(records.scan(records.attention(0)))
    del record["sites"][1]["heads"][2][part]
    with pytest.raises(UserError, match=rf"sites\[1\].heads\[2\]: '{part}' is missing"):
        checked(record)


@pytest.mark.parametrize("nothing", [[], {"format": "rankwise-series", "scans": []}])
def test_an_empty_series_is_refused(nothing):
    with pytest.raises(UserError, match="there is no scan record to report"):
        checked(nothing)


def test_what_is_not_a_record_at_all_is_refused():
    with pytest.raises(UserError, match="this is not a scan record"):
        checked(["text"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("step", "source", "expected"),
    [(0, "run/step7", 0), (None, "run-3/step1200", 1200), (None, "run/last", 5), (None, "s" + "9" * 40, 10**15 - 1)],
)
def test_the_step_is_recorded_or_read_from_the_source_or_counted(step, source, expected):
    assert step_of({"step": step, "source": source}, 5) == expected


def test_findings_point_at_heads_that_exist_and_at_nothing_else():
    sites = records.attention(0, heads=4)
    found = [
        records.finding("dead", "layers.0.ov", 3, "small"),
        records.finding("dead", "layers.0.ov", None, "all small"),
        records.finding("dead", "layers.0.ov", 4, "no such head"),
        records.finding("dead", "layers.9.ov", 0, "no such site"),
    ]
    assert finding_places(records.scan(sites, findings=found)) == [(1, 3), (1, None), None, None]


def test_a_finding_does_not_repeat_its_place_and_kind():
    entry = records.finding("dead", "layers.0.ov", 3, "layers.0.ov head 3 dead: next to nothing")
    assert finding_text(entry) == "next to nothing"
