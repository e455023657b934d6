"""What a scan found, in words."""

from __future__ import annotations

import pytest

from rankwise.report.summary import CERTIFICATES, summarize
from tests.report import records


def test_the_headline_counts_products_certificates_matrices_unread_and_failures():
    summary = summarize(records.transformer(4, 4))
    assert (summary.title, summary.type) == ("toy-decoder", "toy")
    assert summary.counts == (
        ("32", "attention products"),
        ("8 of 8", "attention sites certified"),
        ("9", "other matrices"),
        ("3", "tensors unread"),
        ("1", "without a spectrum"),
    )
    assert summary.warnings == ()


def test_a_network_without_attention_counts_its_matrices_alone():
    assert summarize(records.matrices_only()).counts == (("6", "matrices"), ("0", "tensors unread"))


def test_what_a_reader_must_know_first_is_a_warning():
    sites = records.attention(0, certified="no") + records.attention(1, certified="release")
    summary = summarize(records.scan(sites, complete=False))
    assert [line.partition(":")[0] for line in summary.warnings] == [
        "The scan was interrupted",
        "2 of 4 attention sites are not certified",
    ]
    assert summary.counts[1][0] == "2 of 4"
    assert summary.certificates == (("no", 2, CERTIFICATES["no"]), ("release", 2, CERTIFICATES["release"]))


def test_findings_lead_to_their_heads_with_the_evidence_named():
    first, second, third = summarize(records.transformer(4, 4)).findings
    assert (first.place, first.target) == ("layers.3.qk · head 3", "site-12-head-3")
    assert first.evidence == (("effective rank", "2.1"), ("random factors", "7.4"))
    assert second.kind == "dead"
    assert (third.kind, third.evidence) == ("failed", ())


def test_findings_are_told_by_kind_the_first_three_in_sight():
    found = [records.finding("spiked", "layers.0.qk", head, "so") for head in range(4)]
    found.insert(1, records.finding("dead", "layers.0.ov", 0, "small"))
    groups = summarize(records.scan(records.attention(0, heads=4), findings=found)).finding_groups
    assert [(one.kind, one.count, len(one.shown), len(one.rest)) for one in groups] == [
        ("spiked", 4, 3, 1),
        ("dead", 1, 1, 0),
    ]
    assert all(one.meaning for one in groups)


def test_a_finding_about_a_head_that_is_not_there_leads_nowhere():
    found = [records.finding("dead", "layers.7.qk", 0, "gone")]
    assert summarize(records.scan(records.attention(0), findings=found)).findings[0].target == ""


def test_unread_tensors_are_grouped_by_reason_the_largest_group_first():
    summary = summarize(records.transformer())
    assert [(reason, len(tensors)) for reason, tensors in summary.unread] == [
        ("a router: no product of weights", 2),
        ("an additive bias, not a factor", 1),
    ]
    assert summary.unread[0][1][0] == ("layers.0.gate.weight", "8 x 64")
    assert summary.unread_count == 3


def test_methods_are_counted_over_all_heads_and_explained():
    methods = {name: (count, words) for name, count, words in summarize(records.transformer(4, 4)).methods}
    assert methods["gram64"][0] == 31
    assert methods["qr"][0] == 9
    assert methods["none"] == (1, "")
    assert "float64" in methods["gram64"][1]


def test_a_diff_names_its_base_and_what_a_lora_needs():
    summary = summarize(records.difference())
    assert (summary.source, summary.base) == ("models/toy-tuned", "models/toy-decoder")
    moved, still = summary.ranks
    assert dict(moved.ranks) == {"90%": "3", "95%": "5", "99%": "more than looked for"}
    assert (dict(still.ranks), still.reason) == ({}, "unchanged")
    assert still.products == ()


def test_the_products_of_a_matrix_stand_beside_its_lora_ranks():
    record = records.difference()
    for site, ranks in zip(record["sites"], ([4, 9], [2, 2]), strict=False):
        for head, rank in zip(site["heads"], ranks, strict=False):
            head["measures"]["energy_rank"] = [float(rank), 0.0]
    record["matrices"][0]["sites"] = ["layers.0.qk", "layers.9.qk"]
    assert summarize(record).ranks[0].products == (
        ("layers.0.qk", "site-0-head-0", "4 to 9"),
        ("layers.9.qk", "", ""),
    )


@pytest.mark.parametrize("name", ["a\x1b[31mb", "a\u202eb", "a\x00b"])
def test_text_from_a_file_is_shown_without_what_is_hidden_in_it(name):
    unread = [{"parameter": name, "shape": [2, 2], "reason": name}]
    summary = summarize(records.scan([], source=name, unread=unread, notes=[name]))
    shown = [summary.source, summary.unread[0][0], summary.unread[0][1][0][0], summary.notes[0]]
    assert set(shown) == {"a?b"}
