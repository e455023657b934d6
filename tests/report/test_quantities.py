"""What a heatmap can be coloured by, with its null."""

from __future__ import annotations

import math

import pytest

from rankwise.report.quantities import pair, quantities
from tests.report import records


def by_key(record):
    return {one.key: one for one in quantities([record])}


def test_the_share_of_the_effective_rank_comes_first_and_has_the_null_of_its_shape():
    record = records.transformer(2)
    first = quantities([record])[0]
    site = record["sites"][0]
    head = site["heads"][0]
    assert first.key == "effective_rank_share"
    value, error = head["measures"]["effective_rank"]
    assert first.of(site, head) == (value / 8, error / 8)
    mean, spread = site["null"]["measures"]["effective_rank"]
    assert first.null(site) == (mean / 8, spread / 8)
    assert not first.scales


def test_norms_scale_with_the_head_and_shapes_do_not():
    found = by_key(records.transformer(2))
    assert {key for key, one in found.items() if one.scales} == {"nuclear_norm", "frobenius_norm", "operator_norm"}


def test_only_quantities_that_some_head_has_are_offered():
    assert set(by_key(records.matrices_only())) == {*records.MEASURES, "effective_rank_share", "over_edge"}
    assert "pair_relative_gap" not in by_key(records.transformer(2))
    assert by_key(records.scan([])) == {}


def test_rotary_pairs_are_a_quantity_of_their_own_without_the_null_of_the_content_product():
    record = records.grouped_rotary()
    found = by_key(record)
    site = record["sites"][0]
    head = site["heads"][0]
    assert found["pair_relative_gap"].of(site, head) == (head["pairs"]["relative"], None)
    assert found["relative_gap"].of(site, head) != found["pair_relative_gap"].of(site, head)
    assert found["pair_relative_gap"].null(site) is None
    assert found["relative_gap"].null(site) == tuple(site["null"]["relative_gap"])


def test_the_largest_value_is_measured_against_the_edge_at_the_heads_own_scale():
    record = records.transformer(2)
    site = record["sites"][0]
    head = site["heads"][0]
    found = by_key(record)["over_edge"].of(site, head)
    assert found is not None
    assert math.isclose(found[0] * head["null_scale"] * site["null"]["edge"], head["values"][0])


def test_a_gap_carries_the_error_of_its_balance():
    record = records.transformer(2)
    site = record["sites"][0]
    balance = site["heads"][0]["balance"]
    assert by_key(record)["relative_gap"].of(site, site["heads"][0]) == (
        balance["relative"],
        balance["error"] / balance["half_sum"],
    )


def test_a_diff_has_its_base_to_compare_with_and_chance_as_the_null():
    record = records.difference()
    found = by_key(record)
    site = record["sites"][0]
    head = site["heads"][0]
    norm, error = head["measures"]["frobenius_norm"]
    moved = head["change"]["relative"]
    assert found["relative_change"].of(site, head) == (moved, pytest.approx(moved * error / norm))
    assert found["left_overlap"].of(site, head) == (head["change"]["left"], head["change"]["error"])
    assert found["left_overlap"].null(site) == (head["change"]["left_chance"], None)
    assert "relative_gap" not in found


@pytest.mark.parametrize(
    ("given", "expected"),
    [([1.0, 0.1], (1.0, 0.1)), (2, (2.0, None)), ([1.0, None], (1.0, None)), ([None, 0.1], None), (None, None)],
)
def test_a_pair_is_a_value_with_its_error_or_nothing(given, expected):
    assert pair(given) == expected
