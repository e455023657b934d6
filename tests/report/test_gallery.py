"""The page of the theory's figures: complete, closed to the network, and moved by its sliders in a real browser."""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

import pytest

from rankwise.errors import UserError
from rankwise.report.gallery import render_gallery, write_gallery
from rankwise.theory.gallery import gallery
from tests.report.test_page import HOSTILE, Page


@cache
def record() -> dict[str, Any]:
    return gallery(width=3, samples=16, stages=3, alphas=(0.3, 0.1, 1e-12), decays=(0.0, 0.4, 1.0))


def test_only_scripts_of_the_package_run_and_nothing_is_fetched() -> None:
    page = Page(render_gallery(record()))
    assert page.policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src" not in page.policy
    for tag, attributes in page.elements:
        assert "src" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on")], tag
        assert str(attributes.get("href", "#")).startswith(("#", "data:,")), tag


def test_curves_travel_as_float32_and_all_else_as_it_is() -> None:
    data = Page(render_gallery(record())).data
    assert isinstance(data["diagonal"]["times"], str)
    assert isinstance(data["diagonal"]["runs"][0]["products"][0], str)
    assert isinstance(data["matrices"]["runs"][0]["values"]["OV"][0], str)
    assert data["diagonal"]["path"][0]["time"] == record()["diagonal"]["path"][0]["time"]
    assert data["diagonal"]["runs"][0]["stage_times"] == record()["diagonal"]["runs"][0]["stage_times"]


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_record_changes_no_element_of_the_page(kind: str) -> None:
    def poisoned(name: str) -> dict[str, Any]:
        changed = copy.deepcopy(record())
        changed["rankwise"] = changed["created"] = changed["diagonal"]["ending"] = name
        changed["settings"]["width"] = name
        for stage in changed["diagonal"]["path"]:
            stage["name"] = name
        return changed

    harmless, hostile = (Page(render_gallery(poisoned(name))) for name in ("name", HOSTILE[kind]))
    assert hostile.tags == harmless.tags
    assert hostile.scripts[1:] == harmless.scripts[1:]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda one: one | {"format": "rankwise.scan"}, "no gallery of the theory"),
        (lambda one: [one], "no gallery of the theory"),
        (lambda one: one | {"version": 99}, "version 99, this Rankwise reads version 1"),
        (lambda one: {key: one[key] for key in one if key != "decay"}, "not complete"),
        (lambda one: one | {"matrices": {"runs": []}}, "not complete"),
    ],
)
def test_what_is_no_gallery_is_refused_in_one_line(change, text: str) -> None:
    with pytest.raises(UserError, match=text):
        render_gallery(change(record()))


def ends(browser, name: str) -> list[list[float]]:
    """The last values of the curves of a chart."""
    return browser.run(f"return document.querySelector('#{name}').data.map((one) => [...one.y].at(-1))")


def slide(browser, name: str, place: int) -> None:
    browser.run(
        "const slider = document.getElementById(arguments[0]); slider.value = arguments[1];"
        "slider.dispatchEvent(new Event('input'));",
        name,
        place,
    )


@pytest.mark.slow
def test_the_sliders_move_the_figures(browser, tmp_path) -> None:
    path = write_gallery(json.loads(json.dumps(record())), tmp_path / "gallery.html")
    browser.open(path)
    browser.screenshot("gallery")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    charts = browser.all(".small svg.main-svg")
    assert len(charts) >= 2 * (3 + 3 + 2 + 4)
    assert browser.text("#alpha-name") == "\N{GREEK SMALL LETTER ALPHA} = 1e-12"
    runs = record()["diagonal"]["runs"]
    for place in (2, 0):
        slide(browser, "alpha", place)
        assert browser.text("#alpha-name") == f"\N{GREEK SMALL LETTER ALPHA} = {runs[place]['alpha']:g}"
        # Above the other runs the chosen one, above all the limit.
        shown = browser.run("return [...document.querySelector('#loss').data.at(-2).y]")
        assert shown == pytest.approx(runs[place]["losses"], rel=1e-6)
        rows = browser.all("#stages tbody tr")
        assert len(rows) == len(record()["diagonal"]["path"])
        measured = runs[place]["stage_times"][0]
        assert ("not reached" if measured is None else f"{measured:.5g}") in rows[0].text
    assert "0.3" in browser.text("#matrices-note")
    decays = record()["decay"]["runs"]
    for place in (2, 1):
        slide(browser, "decay", place)
        assert browser.text("#decay-name") == f"λ = {decays[place]['decay']:g}"
        assert ends(browser, "values") == pytest.approx(decays[place]["end"], abs=1e-6)
    browser.screenshot("gallery-moved")


@pytest.mark.slow
def test_it_is_readable_in_the_dark_and_on_a_telephone(browser, tmp_path) -> None:
    path = write_gallery(record(), tmp_path / "gallery.html")
    browser.open(path, width=390, dark=True)
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(19, 21, 25)"
    browser.screenshot("gallery-dark-narrow")
