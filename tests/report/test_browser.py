"""The page in a real browser: clicked, sorted, moved through by keys, dark, narrow, printed, and under attack."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from rankwise.report.page import write_page
from tests.report import records
from tests.report.browser import Browser
from tests.report.test_page import HOSTILE, poisoned

pytestmark = pytest.mark.slow

RECORDS = {
    "transformer": lambda: records.transformer(8, 12, width=96, size=16),
    "encoder_decoder": records.encoder_decoder,
    "grouped_rotary": records.grouped_rotary,
    "uneven": records.uneven,
    "matrices_only": records.matrices_only,
    "one_head": lambda: records.transformer(1, 1),
    "series": records.series,
    "difference": records.difference,
    "nothing": lambda: records.scan([]),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {name: write_page(make(), folder / f"{name}.html") for name, make in RECORDS.items()}


def fits(browser: Browser) -> bool:
    return browser.run("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("name", RECORDS)
def test_every_kind_of_record_draws_without_a_complaint(browser, pages, name):
    browser.open(pages[name])
    assert fits(browser)
    shown = browser.run("return [...document.querySelectorAll('#grid figure:not([hidden]) .plot svg.main-svg')].length")
    assert (shown > 0) == (name != "nothing")
    browser.screenshot(name)


def test_a_click_on_a_cell_shows_the_spectrum_of_that_head(browser, pages):
    browser.open(pages["transformer"])
    browser.click_cell(0, row=2, column=5)
    assert browser.text("#panel-title") == "layer 2 · head 5 · QK"
    first = browser.run("return [...document.querySelector('#spectrum').data.at(-1).y]")
    site = RECORDS["transformer"]()["sites"][8]
    assert site["name"] == "layers.2.qk"
    assert first == pytest.approx(site["heads"][5]["values"], rel=1e-6)
    browser.click_cell(1, row=2, column=5)
    assert browser.text("#panel-title") == "layer 2 · head 5 · OV"
    assert browser.run("return [...document.querySelector('#spectrum').data.at(-1).y]") != first
    assert "layers.2.ov" in browser.text("#panel")
    browser.screenshot("clicked")


def test_the_page_opens_on_a_head_unlike_the_others(browser, pages):
    browser.open(pages["transformer"])
    assert browser.text("#panel-title") == "layer 7 · head 11 · QK", "the most telling finding"
    browser.open(pages["difference"])
    values = [
        head["measures"]["effective_rank"][0] for site in RECORDS["difference"]()["sites"] for head in site["heads"]
    ]
    lowest = browser.all("#extremes .link")[0]
    assert browser.text("#panel-title") == f"Change of {lowest.text}", "without findings, the lowest value"
    shown = [float(one.text) for one in browser.all("#extremes b")]
    assert shown == pytest.approx([min(values) / 8, max(values) / 8], abs=1e-4)


def test_the_extremes_lead_to_their_heads_and_follow_the_measure(browser, pages):
    browser.open(pages["transformer"])
    highest = browser.all("#extremes .link")[1]
    name = highest.text
    highest.click()
    assert browser.text("#panel-title") == name
    Select(browser.one("#quantity")).select_by_visible_text("operator norm")
    sites = RECORDS["transformer"]()["sites"]
    norms = {
        (site["layer"], head["head"], site["kind"].upper()): head["measures"]["operator_norm"][0]
        for site in sites
        for head in site["heads"]
        if head["failure"] is None
    }
    layer, head, kind = min(norms, key=lambda one: norms[one])
    assert browser.all("#extremes .link")[0].text == f"layer {layer} · head {head} · {kind}"


def test_every_number_says_its_formula_when_pointed_at(browser, pages):
    browser.open(pages["transformer"])
    told = [one.get_attribute("title") for one in browser.all("#panel .told")]
    assert "sum s_i^2 / s_1^2\nWhat stable rank means." in told
    heads = {one.text: one.get_attribute("title") for one in browser.all(".heads thead button")}
    assert heads["stable rank"] in told
    assert not heads["site"]


def test_a_failed_head_says_why(browser, pages):
    browser.open(pages["transformer"])
    browser.click_cell(1, row=4, column=6)
    assert browser.text("#panel-title") == "layer 4 · head 6 · OV"
    assert browser.text(".no-spectrum") == "No spectrum: the weights hold NaN"
    assert not browser.all("#spectrum")


def test_another_measure_recolours_the_heatmap_and_moves_its_null(browser, pages):
    browser.open(pages["transformer"])
    colours = "return document.querySelectorAll('#grid .plot')[0].data[1].z.map((row) => [...row])"
    before, random = browser.run(colours), browser.text(".rule .random")
    assert random.startswith("random 0.9")
    Select(browser.one("#quantity")).select_by_visible_text("stable rank")
    assert browser.run(colours) != before
    assert browser.text(".rule .random") != random
    assert browser.text("#formula") == "sum s_i^2 / s_1^2"
    Select(browser.one("#quantity")).select_by_visible_text("nuclear norm")
    assert not browser.all(".rule .random"), "the null of a norm has the scale of each head"


def test_the_table_sorts_both_ways_filters_and_selects(browser, pages):
    browser.open(pages["transformer"])

    def column() -> list[float]:
        texts = browser.run(
            """
            const titles = [...document.querySelectorAll(".heads thead th")].map((one) => one.innerText);
            const at = titles.findIndex((title) => title.includes("stable rank"));
            return [...document.querySelectorAll(".heads tbody tr")].map((row) => row.children[at].innerText);
            """
        )
        return [float(text.replace(",", "")) for text in texts if text[0].isdigit()]

    button = next(one for one in browser.all(".heads thead button") if one.text == "stable rank")
    browser.run("arguments[0].click()", button)
    assert column() == sorted(column(), reverse=True)
    assert len(browser.all('th[aria-sort="descending"]')) == 1
    browser.run("document.activeElement.click()")
    assert column() == sorted(column())
    browser.one("#table-text").send_keys("layers.3.qk")
    assert browser.text("#table-count") == "12 of 12, 209 in all"
    browser.one("#table-text").send_keys(" nothing like it")
    assert browser.text("#table-count") == "0 of 0, 209 in all"
    browser.one("#table-text").clear()
    Select(browser.one("#table-kind")).select_by_value("embed")
    browser.run("arguments[0].click()", browser.one(".heads tbody button"))
    assert "embeddings.token.embed" in browser.text("#panel")


def test_a_finding_leads_to_its_head(browser, pages):
    browser.open(pages["transformer"])
    link = browser.all(".findings a")[1]
    assert link.text == "layers.1.ov · head 0"
    link.click()
    assert browser.text("#panel-title") == "layer 1 · head 0 · OV"
    assert "dead" in browser.text("#panel .finding")
    top, height = browser.run("return [byId('panel').getBoundingClientRect().top, innerHeight]")
    assert 0 <= top < height


def test_the_keyboard_reaches_every_cell_and_control(browser, pages):
    browser.open(pages["transformer"])
    browser.click_cell(0, row=0, column=0)
    browser.run("document.querySelector('#grid .plot').focus()")
    for key in (Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT, Keys.ARROW_UP, Keys.ARROW_UP):
        browser.press(key)
    assert browser.text("#panel-title") == "layer 0 · head 1 · QK"
    assert browser.run("return byId('said').textContent").startswith("layer 0 · head 1 · QK: effective rank")
    reached = set()
    browser.run("document.querySelector('.findings a').focus()")
    for _ in range(60):
        browser.press(Keys.TAB)
        reached.add(browser.run("const at = document.activeElement; return at.id || at.className || at.innerText"))
    assert {"quantity", "scatter-gap", "table-kind", "table-text", "table-scroll"} <= reached


def test_log_and_linear_and_the_other_product_of_a_head(browser, pages):
    browser.open(pages["transformer"])
    browser.click_cell(0, row=3, column=3)
    axis = "return document.querySelector('#spectrum')._fullLayout.yaxis.type"
    assert browser.run(axis) == "log"
    next(one for one in browser.all("#panel button") if one.text == "linear").click()
    assert browser.run(axis) == "linear"
    assert browser.run("return document.activeElement.innerText") == "linear"
    next(one for one in browser.all("#panel button") if one.text == "OV of this head").click()
    assert browser.text("#panel-title") == "layer 3 · head 3 · OV"


def test_the_scatter_draws_groups_and_rotary_pairs_for_what_they_are(browser, pages):
    browser.open(pages["grouped_rotary"])
    key = browser.text("#scatter-key")
    assert "QK, rotary pair sums (24)" in key
    assert "OV, groups of heads (6)" in key
    points = "return byId('scatter').data.filter((one) => one.mode === 'markers').map((one) => [...one.y])"
    half_sums = browser.run(points)
    browser.run("byId('scatter-gap').click()")
    relative = browser.run(points)
    assert all(0 < y < 1 for one in relative for y in one)
    assert relative != half_sums


def test_a_series_moves_by_its_slider_and_keeps_the_head(browser, pages):
    browser.open(pages["series"])
    browser.click_cell(0, row=1, column=2)
    values = "return [...document.querySelector('#spectrum').data.at(-1).y]"
    last, scale = browser.run(values), browser.text("#legend")
    browser.one("#step").send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert browser.text("#step-name") == "step 0"
    assert "runs/toy/step0" in browser.text(".top")
    assert browser.text("#panel-title") == "layer 1 · head 2 · QK"
    assert browser.run(values) != last
    assert browser.text("#legend") == scale, "a colour means the same at every checkpoint"
    assert browser.run("return [...document.querySelector('#course').data[0].x]") == [0, 100, 1000]


@pytest.mark.parametrize(
    ("name", "width", "dark"), [("dark", 1440, True), ("narrow", 390, False), ("wide", 2560, False)]
)
def test_dark_narrow_and_wide_windows(browser, pages, name, width, dark):
    browser.open(pages["transformer"], width=width, dark=dark)
    assert fits(browser)
    paper = browser.run("return getComputedStyle(document.querySelector('main > section')).backgroundColor")
    assert (sum(int(part) for part in paper[4:-1].split(",")) < 3 * 64) == dark
    tallest = browser.run(
        "return Math.max(...[...document.querySelectorAll('.plain td')].map((one) => one.offsetHeight))"
    )
    assert tallest < 120, "a cell is squeezed until its words break"
    browser.screenshot(name)


def test_a_window_that_changes_its_width_is_drawn_anew(browser, pages):
    browser.open(pages["transformer"])
    drawn = """
        const charts = [...document.querySelectorAll("#grid .plot, #spectrum, #scatter")];
        return charts.map((one) => one._fullLayout?.width ?? 0);
    """
    before = browser.run(drawn)
    browser.resize(390)
    WebDriverWait(browser.driver, 10).until(lambda _: max(browser.run(drawn)) <= 390)
    assert fits(browser)
    browser.resize(1440)
    WebDriverWait(browser.driver, 10).until(lambda _: browser.run(drawn) == before)


def test_nothing_moves_after_the_page_is_drawn(browser, pages):
    browser.open(pages["transformer"])
    shift = """
        const done = arguments[0];
        let total = 0;
        new PerformanceObserver((list) => { for (const one of list.getEntries()) total += one.value; })
            .observe({ type: "layout-shift", buffered: true });
        requestAnimationFrame(() => requestAnimationFrame(() => done(total)));
    """
    assert browser.driver.execute_async_script(shift) < 0.01


def test_a_printed_page_is_light_and_whole(browser, pages):
    browser.open(pages["transformer"], dark=True)
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    ticks = browser.run("return getComputedStyle(document.querySelector('#grid .xtick text')).fill")
    assert sum(int(part) for part in ticks[4:-1].split(",")) < 3 * 128, "dark mode's pale ink on white paper"
    assert not browser.one(".filters").is_displayed()


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_are_text_in_the_browser_as_well(browser, kind, tmp_path):
    path = write_page([poisoned(HOSTILE[kind]), poisoned(HOSTILE[kind])], tmp_path / "page.html")
    browser.open(path)
    assert fits(browser)
    assert browser.run("return document.querySelectorAll('img, iframe, object, embed, [onerror]').length") == 0
    elements = browser.run("return document.scripts.length")
    browser.click_cell(0, row=0, column=1)
    browser.one("#table-text").send_keys("a")
    # Pointing at a chart makes Plotly lay out labels of its own, in which it reads some HTML.
    shown = []
    for heatmap in range(3):
        browser.point_at_cell(heatmap, row=0, column=0)
        shown.append(browser.hovered())
    assert browser.run("return document.scripts.length") == elements
    assert browser.run("return document.querySelectorAll('svg a, svg img, svg script').length") == 0
    if kind in ("script", "link", "quotes"):
        assert all(HOSTILE[kind] in text for text in [*shown, browser.text("#panel")])
    if kind == "script":
        browser.screenshot("hostile")
