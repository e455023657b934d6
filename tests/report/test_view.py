"""What the page's script reads of a scan."""

from __future__ import annotations

import base64
import json
import math
import struct

import pytest

from rankwise.report.view import LARGEST_PLOTTED, page_data, plotted_ranks
from tests.report import records


def unpacked(text: str) -> list[float]:
    return [value for (value,) in struct.iter_unpack("<f", base64.b64decode(text))]


def test_the_spectrum_of_a_head_arrives_with_its_errors_and_its_null():
    record = records.transformer(2)
    view = page_data([record])["views"][0]
    site, shown = record["sites"][0], view["sites"][0]
    for head, one in zip(site["heads"], shown["heads"], strict=True):
        assert unpacked(one["values"]) == pytest.approx(head["values"], rel=1e-6)
        assert unpacked(one["errors"]) == pytest.approx(head["errors"], rel=1e-6)
        assert one["count"] == len(head["values"])
    null = view["nulls"][shown["null"]]
    for key in ("values", "low", "high"):
        assert unpacked(null[key]) == pytest.approx(site["null"][key], rel=1e-6)


def test_sites_of_one_shape_share_a_null():
    view = page_data([records.transformer(3)])["views"][0]
    widths = {tuple(site["widths"]) for site in view["sites"] if site["null"] is not None}
    assert len(view["nulls"]) == len(widths) == 2


def test_values_are_aligned_with_the_quantities_and_keep_their_errors():
    record = records.transformer(2)
    data = page_data([record])
    keys = [one["key"] for one in data["quantities"]]
    shown = data["views"][0]["sites"][0]["heads"][0]["measured"][keys.index("nuclear_norm")]
    value, error = record["sites"][0]["heads"][0]["measures"]["nuclear_norm"]
    assert shown[0] == pytest.approx(value, rel=1e-6)
    assert error <= shown[1] <= 1.11 * error


def test_a_failed_head_has_its_reason_and_no_numbers():
    record = records.transformer(4, 4)
    site = next(one for one in page_data([record])["views"][0]["sites"] if one["name"] == "layers.2.ov")
    failed = site["heads"][2]
    assert (failed["failure"], failed["count"], failed["values"]) == ("the weights hold NaN", 0, "")
    assert set(failed["measured"]) == {None}


def test_numbers_that_are_not_finite_leave_a_gap_and_not_a_broken_page():
    record = records.scan(records.attention(0))
    head = record["sites"][0]["heads"][0]
    head["values"][1], head["measures"]["stable_rank"], head["null_scale"] = math.nan, [math.inf, math.inf], math.nan
    text = json.dumps(page_data([record]), allow_nan=False)
    shown = json.loads(text)["views"][0]["sites"][0]["heads"][0]
    assert math.isnan(unpacked(shown["values"])[1])
    assert shown["scale"] is None
    assert None in shown["measured"]


@pytest.mark.parametrize("count", [0, 1, LARGEST_PLOTTED, LARGEST_PLOTTED + 1, 4096, 50257])
def test_a_long_spectrum_is_thinned_in_order_and_keeps_its_ends(count):
    ranks = plotted_ranks(count)
    assert ranks == sorted(set(ranks))
    assert len(ranks) == min(count, LARGEST_PLOTTED)
    assert not count or (ranks[0], ranks[-1]) == (0, count - 1)


def test_a_series_keeps_one_view_for_each_checkpoint():
    data = page_data(records.series((0, 100, 1000)))
    assert [view["step"] for view in data["views"]] == [0, 100, 1000]
    assert not data["change"]
    assert page_data([records.difference()])["change"]


def test_findings_are_joined_to_their_heads_by_position():
    found = page_data([records.transformer(4, 4)])["views"][0]["findings"]
    assert [(one["kind"], one["site"], one["head"]) for one in found] == [
        ("collapsed", 12, 3),
        ("dead", 5, 0),
        ("failed", 9, 2),
    ]
