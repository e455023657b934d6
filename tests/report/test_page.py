"""The page as a file: complete, closed to the network, and safe whatever a checkpoint's names are."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import re
import sys
from html.parser import HTMLParser

import pytest

from rankwise.errors import MissingExtra, UserError
from rankwise.report.page import SCRIPTS, render, write_page
from tests.report import records

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "image": '"><img src=x onerror=alert(1)>',
    "closing": "</script><script>alert(1)</script><!--",
    "link": '<a href="https://example.org/">here</a><b>bold</b><br>',
    "quotes": 'it\'s `so` and "so" &amp; &lt;b&gt; \\u003c \\',
    "template": "{{ 7 * 7 }}{% raw %}${7*7}%{x}",
    "control": "a\x00b\x1b[31m\r\nc\x7f",
    "bidi": "safe\u202etxt.exe\u2066\u200b",
    "long": "x" * 10_000,
    "proto": "__proto__",
    "separator": "a\u2028b\u2029c",
}


class Page(HTMLParser):
    """The elements of a page, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.elements and self.cdata_elem == "script":
            self.scripts[-1] += data
        else:
            self.words.append(data)

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]

    @property
    def policy(self) -> str:
        found = [attributes for _, attributes in self.elements if "http-equiv" in attributes]
        return str(found[0]["content"])

    @property
    def data(self):
        return json.loads(self.scripts[0])


def poisoned(name: str) -> records.Json:
    """A record in which every text that comes from outside is this name."""
    record = copy.deepcopy(records.transformer(1, 2))
    record |= {"source": name, "notes": [name], "created": name, "rankwise": name}
    record["model"] = {"type": name, "config": {name: name}}
    record["settings"] = {name: name, "device": [name]}
    record["measures"] = {name: {"title": name, "formula": name, "meaning": name, "scales": False}}
    for site in record["sites"]:
        site["name"] = f"{name}.{site['layer']}.{site['kind']}" if site["layer"] is not None else name
        site |= {"parameters": [name], "notes": [name], "layout": name, "orientation": name, "stack": name}
        for head in site["heads"]:
            head |= {"method": name, "measures": {name: [1.0, 0.0]}}
            head["failure"] = name if head["failure"] else None
    record["findings"] = [records.finding(name, record["sites"][0]["name"], 0, name) | {"evidence": {name: 1.0}}]
    record["unread"] = [{"parameter": name, "shape": [2, 2], "reason": name}]
    sites = [name, record["sites"][0]["name"]]
    record["matrices"] = [
        {"parameter": name, "shape": [2, 2], "sites": sites, "relative": 1.0, "ranks": {name: 1}, "reason": name}
    ]
    return record


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(records.transformer()))


def test_only_the_scripts_of_the_package_may_run_and_each_is_allowed_by_its_hash(page):
    allowed = re.findall(r"'sha256-([^']+)'", page.policy)
    runnable = page.scripts[1:]
    assert [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in runnable] == allowed
    assert len(runnable) == 1 + len(SCRIPTS)
    assert "unsafe" not in page.policy.partition("script-src")[2].partition(";")[0]


def test_the_policy_closes_the_network(page):
    rules = dict(part.strip().split(" ", 1) for part in page.policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data: blob:"
    assert rules["base-uri"] == rules["form-action"] == "'none'"
    assert not {"connect-src", "font-src", "frame-src", "worker-src"} & set(rules)


def test_the_page_refers_to_nothing_outside_itself_and_has_no_inline_handlers(page):
    for tag, attributes in page.elements:
        assert "src" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on")], tag
        assert str(attributes.get("href", "#")).startswith(("#", "data:,")), tag
    style = next(text for text in page.words if "--page:" in text)
    assert not re.search(r"url\(|@import", style)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_name_changes_no_element_of_the_page(kind):
    harmless, hostile = Page(render(poisoned("name"))), Page(render(poisoned(HOSTILE[kind])))
    assert hostile.tags == harmless.tags
    assert [sorted(attributes) for _, attributes in hostile.elements] == [
        sorted(attributes) for _, attributes in harmless.elements
    ]
    assert hostile.scripts[1:] == harmless.scripts[1:]
    assert hostile.policy == harmless.policy
    text = json.dumps(hostile.data, ensure_ascii=False) + "".join(hostile.words)
    assert not re.search("[\x00\x1b\u202e\u2066\u200b\u2028\u2029]", text)
    assert "x" * 500 not in text


def test_a_name_is_shown_as_it_is(page):
    shown = Page(render(poisoned(HOSTILE["script"])))
    assert any(HOSTILE["script"] in text for text in shown.words)
    assert shown.data["views"][0]["sites"][0]["notes"] == [HOSTILE["script"]]


def test_a_scan_a_diff_and_a_series_have_their_own_words():
    scan, diff, series = (
        "".join(Page(render(one)).words) for one in (records.transformer(), records.difference(), records.series())
    )
    assert "Half-sum against nuclear norm" in scan
    assert "since base" not in scan
    assert "change of models/toy-tuned since base models/toy-decoder" in re.sub(r"\s+", " ", diff)
    assert "What a LoRA would need" in diff
    assert "Half-sum against nuclear norm" not in diff
    assert "Checkpoint" in series
    assert "step 1,000" in series


def test_a_series_shows_the_words_of_its_last_checkpoint_first():
    steps = [attributes for _, attributes in Page(render(records.series())).elements if "data-step" in attributes]
    assert {one["data-step"] for one in steps if "hidden" not in one} == {"2"}
    assert {one["data-step"] for one in steps if "hidden" in one} == {"0", "1"}


def test_the_same_record_gives_the_same_page():
    assert render(records.transformer()) == render(records.transformer())


def test_a_page_is_written_where_it_was_asked_for(tmp_path):
    path = write_page(records.scan([]), tmp_path / "page.html")
    assert path.read_text(encoding="utf-8") == render(records.scan([]))
    with pytest.raises(UserError, match=r"the folder .* does not exist"):
        write_page(records.scan([]), tmp_path / "nowhere" / "page.html")


@pytest.mark.parametrize("library", ["jinja2", "plotly"])
def test_a_missing_library_names_its_extra_in_one_line(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    for module in [name for name in sys.modules if name.startswith(f"{library}.")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(MissingExtra, match=rf"{library}.* is not installed: it comes with the extra 'report'"):
        render(records.scan([]))
