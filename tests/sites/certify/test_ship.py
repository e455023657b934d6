"""From rows to the table that ships, and to the table that people read."""

from __future__ import annotations

import json

from rankwise.sites.certify.release import fingerprint
from rankwise.sites.certify.row import Row
from rankwise.sites.certify.ship import release_table
from rankwise.sites.certify.tables import OUTCOMES, Line, lines, markdown_table, summary, table
from rankwise.sites.registry import built_in

OWN = {"attention_bias": False, "rope": "angles"}
ROWS = [
    Row(
        *("arcee", {}, True, 4, 4, 4, 1e-8),
        failures={},
        signatures={"arcee": ["aa", "bb"]},
        defaults={"arcee": OWN, "llama": {"attention_bias": True}},
    ),
    Row("arcee", {"attention_bias": True}, True, 4, 4, 4, 2e-6, failures={}, signatures={"arcee": ["cc"]}, defaults={}),
    Row("arcee", {"attention_bias": None}, built=False, reason="'arcee' does not build small: ValueError: no"),
    Row(
        *("llama", {}, True, 4, 3, 2, 1e-9),
        failures={"layers.0.qk": "value proof failed 1.0e+00 | with a bar"},
        signatures={"llama": ["dd"]},
        defaults={"llama": OWN},
    ),
    Row("longformer", {}, unread=9, unread_reason="banded attention", reason="no attention site was found"),
    Row("mamba", {}, reason="no attention site was found"),
    Row("opaque", {}, True, 2, 2, 0, failures={}),
    Row("reformer", {}, True, 2, 0, 0, failures={"layers.0.qk": "value proof failed 1.0e+00"}),
    Row("timm_backbone", {}, built=False, reason="'timm_backbone' does not build small: ImportError: timm"),
]


def test_the_table_holds_what_was_proved_under_the_types_own_defaults() -> None:
    shipped = release_table(ROWS)
    assert set(shipped["types"]) == {"arcee", "llama"}
    assert shipped["types"]["arcee"]["proved"] == ["aa", "bb", "cc"]
    # Inside another model its defaults were others.
    assert shipped["types"]["llama"]["defaults"] == OWN
    assert "attention_bias" not in shipped["types"]["llama"]["reads"]
    assert json.loads(json.dumps(shipped)) == shipped


def test_every_layout_goes_with_its_fingerprint() -> None:
    assert release_table(ROWS)["layouts"] == {layout.name: fingerprint(layout) for layout in built_in()[0]}


def test_the_lines_come_back_as_they_were() -> None:
    assert [Line(**line) for line in json.loads(json.dumps(release_table(ROWS)["lines"]))] == lines(ROWS)


def test_each_type_is_a_line_that_says_how_it_fared() -> None:
    found = {line.model_type: line for line in lines(ROWS)}
    assert {name: line.outcome for name, line in found.items()} == {
        "arcee": "all by value",
        "llama": "some by value",
        "longformer": "unread",
        "mamba": "no attention",
        "opaque": "gauge only",
        "reformer": "none",
        "timm_backbone": "not built",
    }
    assert {line.outcome for line in found.values()} == set(OUTCOMES)
    assert (found["arcee"].variants, found["arcee"].tried, found["arcee"].error) == (2, 2, 2e-6)
    assert (found["llama"].proved, found["llama"].sites) == (2, 4)
    assert "layers.0.qk: value proof failed" in found["llama"].detail
    assert found["longformer"].detail == "9 unread: banded attention"
    assert "ImportError: timm" in found["timm_backbone"].detail
    assert summary(lines(ROWS)) == (
        "7 model types: 1 all by value, 1 some by value, 1 gauge only, 1 none, 1 unread, 1 no attention, 1 not built"
    )


def test_the_page_is_a_table_whose_cells_hold_no_bars() -> None:
    page = markdown_table(lines(ROWS), "5.0")
    body = [line for line in page.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(body) == 1 + 7
    assert all(line.count("|") == 7 for line in body)
    assert "with a bar" in page
    assert summary(lines(ROWS)) in page
    assert "transformers 5.0" in page


def test_the_terminal_shows_the_same_rows() -> None:
    shown = table(lines(ROWS))
    assert shown.row_count == 7
    assert "1 all by value" in str(shown.title)
