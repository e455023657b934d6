"""The documentation is true: its Python runs, its commands parse, its links lead somewhere, its figures have a command.

A block that cannot run here says why in a comment right above it, `<!-- not run: reason -->`, and is counted below.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from rankwise import cli
from rankwise.scans.findings import ORDER
from tests import markdown
from tests.conftest import REPOSITORY, absent
from tests.givens import GIVENS
from tests.outputs import printed, same

PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])
NOT_RUN: dict[str, int] = {}
"""How many blocks of each page are not run: a number that only goes up on purpose."""


def name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def with_blocks(*languages: str) -> list[Path]:
    return [page for page in PAGES if any(block.language in languages for block in markdown.blocks(page))]


def slow_where_given(page: Path) -> object:
    """What is given are real weights, which take their time."""
    given = any(block.given for block in markdown.blocks(page))
    return pytest.param(page, marks=pytest.mark.slow if given else (), id=name(page))


@pytest.mark.parametrize("page", [slow_where_given(page) for page in with_blocks("python")])
def test_python_blocks_run_in_order(page, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in markdown.blocks(page):
        if block.language != "python":
            continue
        # Empty lines ahead make a traceback show the line of the page itself.
        code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
        missing = [module for module in block.needs if importlib.util.find_spec(module) is None]
        if missing:
            absent(f"{name(page)}:{block.line} needs {', '.join(missing)}")
        for given in block.given:
            namespace |= GIVENS[given](request)
        if block.not_run is None:
            exec(code, namespace)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(one.output_of for one in markdown.blocks(page))], ids=name
)
def test_outputs_are_what_their_commands_print(page, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    GIVENS["a checkpoint"](request)
    GIVENS["a fine-tune"](request)
    for block in markdown.blocks(page):
        if block.output_of is not None:
            found = printed(block.output_of)
            # Shown one above the other where they differ.
            assert same(found, block.text) or found == block.text, f"{name(page)}:{block.line}: python -m tests.outputs"


def test_blocks_that_are_not_run_are_counted_and_say_why():
    skipped = [(page, block) for page in PAGES for block in markdown.blocks(page) if block.not_run is not None]
    assert all(len(block.not_run or "") >= 10 for _, block in skipped)
    assert Counter(name(page) for page, _ in skipped) == NOT_RUN


@pytest.mark.parametrize("page", with_blocks("sh", "shell", "bash", "console", "text"), ids=name)
def test_commands_parse(page):
    """Every `rankwise` line of a page is a command with options that it takes, every `make` line a target."""
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE))
    for block in markdown.blocks(page):
        if block.language not in {"sh", "shell", "bash", "console"} or block.not_run is not None:
            continue
        for line in block.text.splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words[:1] == ["rankwise"]:
                cli.build_app().parse_args(words[1:], exit_on_error=False, print_error=False)
            elif words[:1] == ["make"]:
                asked = {word for word in words[1:] if "=" not in word}
                assert asked <= targets, f"{name(page)}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    broken = [target for target in markdown.links(page) if not (page.parent / target).exists()]
    assert not broken, f"{name(page)} points to {', '.join(broken)}"


def test_every_page_is_in_the_index():
    index = REPOSITORY / "docs/index.md"
    linked = {(index.parent / target).resolve() for target in markdown.links(index)}
    missing = [name(page) for page in PAGES if page.is_relative_to(index.parent) and page not in {index, *linked}]
    assert not missing, f"docs/index.md does not lead to {', '.join(missing)}"


def test_the_guide_tells_every_kind_of_finding():
    told = re.findall(
        r"^\| (\w+) \| ", (REPOSITORY / "docs/scanning.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert told == ["kind", *ORDER]


def test_every_figure_has_its_command():
    listed = (REPOSITORY / "docs/images/README.md").read_text(encoding="utf-8")
    for figure in sorted((REPOSITORY / "docs/images").iterdir()):
        if figure.suffix != ".md":
            assert re.search(rf"^\| `{re.escape(figure.name)}` \| `[^`]+` \|", listed, flags=re.MULTILINE), figure.name


def test_the_reader_of_pages_sees_blocks_notes_and_links(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "See [there](other.md#part), [web](https://example.org/x.md) and ![p](a/b.png).\n"
        "<!-- [hidden](nowhere.md) -->\n"
        "```python\nx = 1\n```\n"
        "<!-- not run: it needs a cluster -->\n```sh\nrankwise scan [a](b)\n```\n"
        "<!-- needs: scipy, pandas -->\n```python\ny = x\n```\n"
        "<!-- given: a checkpoint, a model -->\n```python\nz = y\n```\n"
        "<!-- output of: rankwise doctor --json -->\n```text\n{}\n```\n"
    )
    assert markdown.links(page) == ["other.md", "a/b.png"]
    assert markdown.blocks(page) == [
        markdown.Block("python", text="x = 1\n", line=4),
        markdown.Block("sh", text="rankwise scan [a](b)\n", line=8, not_run="it needs a cluster"),
        markdown.Block("python", text="y = x\n", line=12, needs=("scipy", "pandas")),
        markdown.Block("python", text="z = y\n", line=16, given=("a checkpoint", "a model")),
        markdown.Block("text", text="{}\n", line=20, output_of="rankwise doctor --json"),
    ]
    page.write_text("```python\nx = 1\n")
    with pytest.raises(ValueError, match=r"page.md:1: this block is never closed"):
        markdown.blocks(page)
