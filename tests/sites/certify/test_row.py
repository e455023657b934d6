"""One model type under one configuration, as a record."""

from __future__ import annotations

import json

from rankwise.sites.certify import row as page
from rankwise.sites.certify.row import Row, as_line, row_of, rows
from rankwise.sites.certify.trial import attempt


def test_a_row_says_what_the_certificates_say() -> None:
    trial = attempt("falcon")
    row = row_of(trial)
    assert (row.model_type, row.changes, row.sites, row.passed, row.by_value) == ("falcon", {}, 4, 4, 4)
    assert 0 < row.largest_error < 1e-5
    assert row.failures == {}
    assert set(row.signatures or {}) == {"falcon"}
    assert (row.defaults or {})["falcon"]["multi_query"] is True


def test_a_row_can_be_written_down_and_read_back() -> None:
    row = row_of(attempt("gpt2"))
    assert Row(**json.loads(as_line(row))) == row


def test_attention_that_is_not_read_is_counted_with_its_reason() -> None:
    row = row_of(attempt("longformer"))
    assert (row.sites, row.by_value) == (0, 0)
    assert row.unread > 0
    assert "banded attention" in row.unread_reason
    assert row.reason == "no attention site was found"


def test_a_type_that_does_not_build_says_so() -> None:
    row = row_of(attempt("timm_backbone"))
    assert row.sites == row.unread == 0
    assert "does not build small" in row.reason


def test_the_types_that_govern_parts_are_told_apart() -> None:
    row = row_of(attempt("clip"))
    assert set(row.signatures or {}) == {"clip_text_model", "clip_vision_model"}
    assert {"clip", "clip_text_model", "clip_vision_model"} <= set(row.defaults or {})


def test_own_alone_leaves_the_variants_out() -> None:
    assert [row.changes for row in rows("qwen2", every_variant=False)] == [{}]


def test_what_failed_turned_is_not_tried_again_with_more() -> None:
    # Llama's code takes no notice of this factor, and neither does its layout; here it is one that cannot be built.
    tried: list[dict] = []
    real = page.attempt

    def broken(model_type, changes=None, *, seconds=60):
        tried.append(dict(changes or {}))
        return real("timm_backbone") if "b" in tried[-1] else real(model_type, {}, seconds=seconds)

    page.attempt, page.variants, kept = (
        broken,
        lambda _: iter([{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}]),
        page.variants,
    )
    try:
        found = list(rows("gpt2"))
    finally:
        page.attempt, page.variants = real, kept
    assert tried == [{}, {"a": 1}, {"b": 1}]
    assert [bool(row.by_value) for row in found] == [True, True, False]
