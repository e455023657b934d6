"""The code blocks and links of a Markdown file, as the documentation tests read them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(?P<language>\w*)\s*$")
NOTE = re.compile(r"^<!-- (?P<kind>not run|needs|given|output of): (?P<text>.+) -->$")
LINK = re.compile(r"!?\[[^]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, where it stands, and the note in the comment right above it."""

    language: str
    text: str
    line: int
    """The line of the file that the text starts on, counted from one."""
    not_run: str | None = None
    """Why the block is not run: `<!-- not run: it trains for an hour -->`."""
    needs: tuple[str, ...] = ()
    """Modules that the block imports beyond the core: `<!-- needs: transformers -->`."""
    output_of: str | None = None
    """The command that prints the block: `<!-- output of: rankwise scan path/to/checkpoint -->`."""
    given: tuple[str, ...] = ()
    """What the reader has and the test puts there, of `tests/givens.py`: `<!-- given: a checkpoint, a model -->`."""


def blocks(path: Path) -> list[Block]:
    """Every fenced block of a file, in order; a fence that is never closed is an error of the file."""
    found: list[Block] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    position = 0
    while position < len(lines):
        opening = FENCE.match(lines[position])
        position += 1
        if opening is None:
            continue
        end = next((at for at in range(position, len(lines)) if lines[at].rstrip() == "```"), None)
        if end is None:
            raise ValueError(f"{path.name}:{position}: this block is never closed")
        note = NOTE.match(lines[position - 2].strip()) if position >= 2 else None
        kind, text = (note["kind"], note["text"]) if note else (None, "")
        found.append(
            Block(
                opening["language"],
                text="".join(f"{line}\n" for line in lines[position:end]),
                line=position + 1,
                not_run=text if kind == "not run" else None,
                output_of=text if kind == "output of" else None,
                needs=_listed(text) if kind == "needs" else (),
                given=_listed(text) if kind == "given" else (),
            )
        )
        position = end + 1
    return found


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def links(path: Path) -> list[str]:
    """Every link and picture target of a file that points into the repository, without its anchor."""
    prose = re.sub(r"^```.*?^```$|<!--.*?-->", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = [match["target"].partition("#")[0] for match in LINK.finditer(prose)]
    return [target for target in targets if target and "://" not in target and not target.startswith("mailto:")]
