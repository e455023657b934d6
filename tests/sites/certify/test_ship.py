"""From rows to the table that ships, and to the table that people read."""

from __future__ import annotations

import json

from rankwise.sites.certify.row import Row
from rankwise.sites.certify.ship import release_table
from rankwise.sites.certify.tables import lines, markdown_table, summary, table

OWN = {"attention_bias": False, "rope": "angles"}
ROWS = [
    Row(
        *("arcee", {}, 4, 4, 4, 1e-8),
        failures={},
        signatures={"arcee": ["aa", "bb"]},
        defaults={"arcee": OWN, "llama": {"attention_bias": True}},
    ),
    Row("arcee", {"attention_bias": True}, 4, 4, 4, 2e-6, failures={}, signatures={"arcee": ["cc"]}, defaults={}),
    Row("arcee", {"attention_bias": None}, reason="'arcee' does not build small: ValueError: no"),
    Row(
        *("llama", {}, 4, 3, 2, 1e-9),
        failures={"layers.0.qk": "value proof failed 1.0e+00 | with a bar"},
        signatures={"llama": ["dd"]},
        defaults={"llama": OWN},
    ),
    Row("longformer", {}, unread=9, unread_reason="banded attention", reason="no attention site was found"),
    Row("timm_backbone", {}, reason="'timm_backbone' does not build small: ImportError: timm"),
    Row("reformer", {}, 2, 0, 0, failures={"layers.0.qk": "value proof failed 1.0e+00"}),
]


def test_the_table_holds_what_was_proved_under_the_types_own_defaults() -> None:
    shipped = release_table(ROWS)
    assert set(shipped["types"]) == {"arcee", "llama"}
    assert shipped["types"]["arcee"]["proved"] == ["aa", "bb", "cc"]
    # Inside another model its defaults were others.
    assert shipped["types"]["llama"]["defaults"] == OWN
    assert "attention_bias" not in shipped["types"]["llama"]["reads"]
    assert json.loads(json.dumps(shipped)) == shipped


def test_each_type_is_a_line_that_says_how_it_fared() -> None:
    found = {line.model_type: line for line in lines(ROWS)}
    assert {name: line.outcome for name, line in found.items()} == {
        "arcee": "all",
        "llama": "some",
        "longformer": "none",
        "reformer": "none",
        "timm_backbone": "not built",
    }
    assert (found["arcee"].variants, found["arcee"].tried, found["arcee"].error) == (2, 2, 2e-6)
    assert (found["llama"].passed, found["llama"].sites) == (2, 4)
    assert "layers.0.qk: value proof failed" in found["llama"].detail
    assert "9 unread: banded attention" in found["longformer"].detail
    assert summary(ROWS) == (
        "1 model types with every attention site certified, 1 with some, 2 with none, 1 that do not build here"
    )


def test_the_page_is_a_table_whose_cells_hold_no_bars() -> None:
    page = markdown_table(ROWS)
    body = [line for line in page.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(body) == 1 + 5
    assert all(line.count("|") == 7 for line in body)
    assert "with a bar" in page
    assert summary(ROWS) in page


def test_the_terminal_shows_the_same_rows() -> None:
    shown = table(ROWS)
    assert shown.row_count == 5
    assert "1 model types" in str(shown.title)
