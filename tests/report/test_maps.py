"""Which heatmaps a scan fills."""

from __future__ import annotations

from collections import Counter

import pytest

from rankwise.report.maps import heat_maps
from tests.report import records

SCANS = {
    "transformer": records.transformer,
    "encoder_decoder": records.encoder_decoder,
    "grouped_rotary": records.grouped_rotary,
    "uneven": records.uneven,
    "matrices_only": records.matrices_only,
    "one_head": lambda: records.transformer(1, 1),
}


@pytest.mark.parametrize("name", SCANS)
def test_every_head_of_a_layer_has_one_cell_and_no_two_share_a_place(name):
    sites = SCANS[name]()["sites"]
    cells = Counter()
    for one in heat_maps(sites):
        places = [(row, column) for row, column, _, _ in one.cells]
        assert len(set(places)) == len(places)
        assert {row for row, _ in places} == set(range(len(one.rows)))
        assert {column for _, column in places} == set(range(len(one.columns)))
        for row, _, site, head in one.cells:
            assert one.rows[row] == str(sites[site]["layer"])
            cells[site, head] += 1
    layered = [index for index, site in enumerate(sites) if site["layer"] is not None]
    assert cells == Counter((index, head) for index in layered for head in range(len(sites[index]["heads"])))


def test_qk_stands_beside_ov_for_each_part_of_an_encoder_decoder():
    found = [(one.part, one.kind, one.rows, len(one.columns)) for one in heat_maps(records.encoder_decoder()["sites"])]
    assert found == [
        ("encoder self", "qk", ("0", "1", "2"), 4),
        ("encoder self", "ov", ("0", "1", "2"), 4),
        ("decoder self", "qk", ("0", "1"), 6),
        ("decoder self", "ov", ("0", "1"), 6),
        ("decoder cross", "qk", ("0", "1"), 6),
        ("decoder cross", "ov", ("0", "1"), 6),
    ]


def test_the_plain_grammar_names_no_part_and_matrices_are_columns():
    attention_qk, attention_ov, matrices = heat_maps(records.transformer()["sites"])
    assert (attention_qk.part, attention_ov.part) == ("", "")
    assert attention_qk.column_name == "head"
    assert (matrices.part, matrices.column_name, matrices.columns) == ("layers", "matrix", ("mlp.up", "mlp.down"))


def test_a_layer_with_fewer_heads_leaves_its_other_places_empty():
    first = heat_maps(records.uneven()["sites"])[0]
    assert Counter(row for row, *_ in first.cells) == {0: 4, 1: 1, 2: 6}


def test_experts_are_the_columns_of_their_own_map():
    heads = [
        records.matrix("x", kind="mlp", layer=0, weight=records.gaussian(4, 3, seed=i))["heads"][0] for i in (1, 2)
    ]
    site = records.matrix("layers.0.experts.up.mlp", kind="mlp", layer=0, weight=records.gaussian(4, 3, seed=1))
    (one,) = heat_maps([site | {"heads": heads, "batch": [["expert", 2]]}])
    assert (one.part, one.column_name, one.columns) == ("layers.experts.up", "expert", ("0", "1"))


def test_attention_without_a_layer_still_has_a_row():
    site = records.attention(0)[0] | {"name": "attention.qk", "layer": None}
    (one,) = heat_maps([site])
    assert (one.part, one.rows) == ("attention", ("none",))
