"""Which sites a scan reads: the words of `--select`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import get_args

from rankwise.errors import UserError
from rankwise.sites.site import Kind, Site
from rankwise.sites.sites import Sites

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Sites by kind, layer, stack and name; what is not said is not restricted.

    >>> str(Selection.parse(["kind=qk,layer=0-3"]))
    'kind=qk,layer=0-3'
    """

    kinds: frozenset[str] = frozenset()
    layers: frozenset[int] = frozenset()
    stacks: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()
    text: str = ""

    @classmethod
    def parse(cls, words: Iterable[str]) -> Selection:
        """Read `key=value,key=value`; the keys are kind, layer (a number or a range), stack and name (a glob).

        A key that is repeated, or several values joined by `+`, widen the selection: `kind=qk+ov,layer=0-3,layer=11`.
        """
        text = ",".join(filter(None, (word.strip() for word in words)))
        found: dict[str, list[str]] = {"kind": [], "layer": [], "stack": [], "name": []}
        for clause in filter(None, text.split(",")):
            key, equals, value = clause.partition("=")
            if not equals or key.strip() not in found or not value.strip():
                raise UserError(
                    f"cannot select by '{clause}': write kind=…, layer=…, stack=… or name=…, joined by commas"
                )
            found[key.strip()] += [each.strip() for each in value.split("+")]
        if unknown := [kind for kind in found["kind"] if kind not in get_args(Kind)]:
            raise UserError(f"there is no kind '{unknown[0]}': choose from {', '.join(get_args(Kind))}")
        layers = frozenset(number for word in found["layer"] for number in _numbers(word))
        return cls(
            kinds=frozenset(found["kind"]),
            layers=layers,
            stacks=frozenset(found["stack"]),
            names=tuple(found["name"]),
            text=text,
        )

    def __call__(self, sites: Sites) -> Sites:
        """The selected sites; one line where nothing is left."""
        chosen = sites.select(where=self._wanted)
        if len(sites) and not len(chosen):
            kinds = sorted({site.kind for site in sites})
            layers = sorted({site.layer for site in sites if site.layer is not None})
            extent = f" in layers {layers[0]} to {layers[-1]}" if layers else ""
            raise UserError(
                f"'{self.text}' selects none of the {len(sites)} sites: there are {', '.join(kinds)}{extent}"
            )
        return chosen

    def _wanted(self, site: Site) -> bool:
        return (
            (not self.kinds or site.kind in self.kinds)
            and (not self.layers or site.layer in self.layers)
            and (not self.stacks or site.stack in self.stacks)
            and (not self.names or any(fnmatchcase(site.name, name) for name in self.names))
        )

    def __str__(self) -> str:
        return self.text


def _numbers(word: str) -> range:
    match = _RANGE.fullmatch(word)
    if match is None:
        raise UserError(f"'{word}' is no layer: write a number or a range such as 0-3")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first or last - first > 100_000:
        raise UserError(f"'{word}' is no range of layers: write the smaller number first")
    return range(first, last + 1)
