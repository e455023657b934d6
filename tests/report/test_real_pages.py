"""Pages of real weights in a real browser: what is drawn is what the scan found, and a picture of each is kept."""

from __future__ import annotations

import pytest
from selenium.webdriver.support.ui import Select

import rankwise as rw
from rankwise.report.page import write_page
from tests.report.browser import Browser

pytestmark = pytest.mark.slow


def site_of(record: dict, name: str) -> dict:
    return next(site for site in record["sites"] if site["name"] == name)


def drawn(browser: Browser) -> list[float]:
    """The singular values in the chart of the chosen head."""
    return browser.run("return [...document.querySelector('#spectrum').data.at(-1).y]")


def test_minilm_is_drawn_as_it_was_scanned(browser, minilm_directory, tmp_path):
    record = rw.scan(minilm_directory).record
    page = write_page(record, tmp_path / "page.html")
    assert page.stat().st_size < 8e6, "small enough for a mail"
    browser.open(page)
    assert browser.text(".counts dd") == "144"
    lowest = min(
        (head["measures"]["effective_rank"][0], site["layer"], head["head"], site["kind"].upper())
        for site in record["sites"]
        for head in site["heads"]
        if site["kind"] in ("qk", "ov")
    )
    assert browser.text("#panel-title") == "layer {1} · head {2} · {3}".format(*lowest)
    for heatmap, kind in enumerate(("qk", "ov")):
        cells = browser.run("return document.querySelectorAll('#grid .plot')[arguments[0]].data[1].z", heatmap)
        assert len(cells) == 6
        for layer, row in enumerate(cells):
            heads = site_of(record, f"layers.{layer}.{kind}")["heads"]
            assert row == pytest.approx([head["measures"]["effective_rank"][0] / 32 for head in heads], rel=1e-6)
    browser.click_cell(0, row=4, column=9)
    assert browser.text("#panel-title") == "layer 4 · head 9 · QK"
    assert drawn(browser) == pytest.approx(site_of(record, "layers.4.qk")["heads"][9]["values"], rel=1e-6)
    browser.screenshot("minilm")
    browser.open(page, dark=True, width=390)
    browser.screenshot("minilm-dark-narrow")


def test_a_rotary_model_shows_the_sum_over_its_pairs(browser, stories15m_state, tmp_path):
    config, state = stories15m_state
    record = rw.scan(state, config=config).record
    browser.open(write_page(record, tmp_path / "page.html"))
    head = site_of(record, "layers.2.qk")["heads"][3]
    browser.click_cell(0, row=2, column=3)
    assert drawn(browser) == pytest.approx(head["values"], rel=1e-6)
    assert "rotary: the product is a family over offsets" in browser.text("#panel")
    sums = next(row.text for row in browser.all("#panel .numbers tr") if row.text.startswith("sum of its rotary pairs"))
    assert f"{100 * head['pairs']['relative']:.2g} %" in sums
    assert "QK, rotary pair sums (36)" in browser.text("#scatter-key")
    browser.screenshot("stories15m")


def test_a_diff_shows_the_change_and_what_a_lora_needs(browser, rxnfp_directories, tmp_path):
    record = rw.diff(rxnfp_directories["pretrained"], rxnfp_directories["ft"]).record
    browser.open(write_page(record, tmp_path / "page.html"))
    Select(browser.one("#quantity")).select_by_visible_text("change / base")
    browser.click_cell(1, row=5, column=2)
    assert browser.text("#panel-title") == "Change of layer 5 · head 2 · OV"
    head = site_of(record, "layers.5.ov")["heads"][2]
    assert drawn(browser) == pytest.approx(head["values"], rel=1e-6)
    shown = browser.run("return [...document.querySelectorAll('#grid .plot')[1].data[1].z[5]]")[2]
    assert shown == pytest.approx(head["change"]["relative"], rel=1e-5)
    matrix = next(one for one in record["matrices"] if one["parameter"].endswith("layer.5.attention.self.value.weight"))
    row = next(one.text for one in browser.all(".ranks tbody tr") if matrix["parameter"] in one.text)
    assert " ".join(str(matrix["ranks"][share]) for share in ("90%", "95%", "99%")) in row
    ranks = [head["measures"]["energy_rank"][0] for head in site_of(record, "layers.5.ov")["heads"]]
    assert f"layers.5.ov {min(ranks):.0f} to {max(ranks):.0f}" in row
    assert not browser.all("#balance")
    browser.screenshot("rxnfp-diff")
