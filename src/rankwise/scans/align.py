"""Two checkpoints of one architecture whose names differ by a prefix."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from rankwise.errors import UserError
from rankwise.text import printable


@dataclass(frozen=True)
class Renamed(Mapping[str, Tensor]):
    """A mapping of tensors under other names: `names` leads from the new name to the old one."""

    tensors: Mapping[str, Tensor]
    names: Mapping[str, str]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def common_names(base: Collection[str], tuned: Collection[str]) -> tuple[dict[str, str], str | None]:
    """For each name of the base the name of the same tensor in the tuned model, and a note where a prefix differs.

    Heads and poolers may be missing on either side; the prefix is the one under which most names agree.

    >>> common_names(["bert.a.weight", "bert.b.weight"], ["a.weight", "b.weight", "classifier.weight"])[0]
    {'bert.a.weight': 'a.weight', 'bert.b.weight': 'b.weight'}
    """
    bases, tuneds = set(base), set(tuned)
    best = {name: name for name in base if name in tuneds}
    note = None
    for side, leads in (("the base", _leads(base)), ("the tuned model", _leads(tuned))):
        for lead in leads:
            if side == "the base":
                found = {f"{lead}{name}": name for name in tuned if f"{lead}{name}" in bases}
            else:
                found = {name: f"{lead}{name}" for name in base if f"{lead}{name}" in tuneds}
            if len(found) > len(best):
                best, note = found, f"{side}'s names start with '{printable(lead)}', the other's do not"
    if not best:
        examples = " and ".join(printable(next(iter(sorted(names)), "nothing"), limit=60) for names in (base, tuned))
        raise UserError(
            f"the two checkpoints have no tensor name in common (as in {examples}): give two of one architecture"
        )
    return best, note


def _leads(names: Collection[str]) -> list[str]:
    """The first one to three components that many names share, as prefixes."""
    counts: dict[str, int] = {}
    for name in names:
        parts = name.split(".")
        for depth in range(1, min(4, len(parts))):
            lead = ".".join(parts[:depth]) + "."
            counts[lead] = counts.get(lead, 0) + 1
    return [lead for lead, count in counts.items() if count * 2 >= len(names)]
