"""The sites of a model, and what was not read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from rankwise.errors import UserError
from rankwise.sites.site import Site

if TYPE_CHECKING:
    from rich.table import Table

    from rankwise.sites.certify import Certificates


@dataclass(frozen=True)
class Unread:
    """A matrix parameter that no site covers, and why."""

    parameter: str
    shape: tuple[int, ...]
    reason: str


class Sites:
    """An ordered collection of sites; knows what it leaves out.

    Arguments:
        sites: the sites.
        unread: the matrix parameters that no site covers, with the reason.
        tied: names that share a tensor with another name, under which it is read.
        source: where the sites were found, for `certify`.
    """

    def __init__(
        self,
        sites: Iterable[Site],
        *,
        unread: Iterable[Unread] = (),
        tied: Mapping[str, str] | None = None,
        source: Any = None,
    ) -> None:
        self._sites = {site.name: site for site in sites}
        self.unread = tuple(unread)
        self.tied = dict(tied or {})
        self.source = source

    def __getitem__(self, name: str) -> Site:
        if name not in self._sites:
            import difflib

            near = difflib.get_close_matches(name, self._sites, n=3, cutoff=0.4)
            hint = f"; near it are {', '.join(near)}" if near else ""
            raise UserError(f"there is no site '{name}' among the {len(self)} found{hint}")
        return self._sites[name]

    def __contains__(self, name: object) -> bool:
        return name in self._sites

    def __iter__(self) -> Iterator[Site]:
        return iter(self._sites.values())

    def __len__(self) -> int:
        return len(self._sites)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sites, in order."""
        return tuple(self._sites)

    def select(
        self,
        *,
        kind: str | Collection[str] | None = None,
        layer: int | Collection[int] | None = None,
        stack: str | None = None,
        name: str | None = None,
        where: Callable[[Site], bool] | None = None,
    ) -> Sites:
        """The sites that fit all that is given: kinds, layers, a stack, a glob for their names, a test."""
        kinds = {kind} if isinstance(kind, str) else kind
        layers = {layer} if isinstance(layer, int) else layer

        def wanted(site: Site) -> bool:
            return (
                (kinds is None or site.kind in kinds)
                and (layers is None or site.layer in layers)
                and (stack is None or site.stack == stack)
                and (name is None or fnmatchcase(site.name, name))
                and (where is None or where(site))
            )

        return Sites(filter(wanted, self), unread=self.unread, tied=self.tied, source=self.source)

    def marked(self, mark: Callable[[Site], Site]) -> Sites:
        """The same collection with every site replaced by `mark(site)`."""
        return Sites(map(mark, self), unread=self.unread, tied=self.tied, source=self.source)

    @property
    def covered(self) -> frozenset[str]:
        """The names of all tensors that some site reads."""
        return frozenset(name for site in self for name in site.parameters)

    def by_layer(self) -> dict[int | None, Sites]:
        """The sites of each layer."""
        layers = dict.fromkeys(site.layer for site in self)
        return {layer: self.select(where=lambda site, layer=layer: site.layer == layer) for layer in layers}

    def certify(self, model: Any = None, inputs: Mapping[str, Any] | None = None) -> Certificates:
        """Prove every attention site on the real module: by its logits and outputs, and by gauge moves.

        Arguments:
            model: the live module; the one that `find` was given by default.
            inputs: keyword arguments of its forward; made up from its configuration by default.
        """
        from rankwise.sites.certify import certify

        return certify(self, model if model is not None else self.source, inputs)

    def as_certified(self, certified: Mapping[str, Any]) -> Sites:
        """The sites with the certificates of the given names put in."""
        return self.marked(lambda site: replace(site, certified=certified.get(site.name, site.certified)))

    def table(self) -> Table:
        """Every site in a row: name, kind, heads, shape, certificate, notes."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=f"{len(self)} sites, {len(self.unread)} parameters unread")
        for column in ("site", "kind", "heads", "shape", "certified", "notes"):
            table.add_column(column, justify="right" if column in ("heads", "shape") else "left")
        for site in self:
            shape = "x".join(map(str, site.shape[-2:]))
            row = (site.name, site.kind, str(site.heads), shape, site.certified, "; ".join(site.notes))
            table.add_row(*map(Text, row))
        return table

    def __rich__(self) -> Table:
        return self.table()

    def __repr__(self) -> str:
        kinds: dict[str, int] = {}
        for site in self:
            kinds[site.kind] = kinds.get(site.kind, 0) + 1
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        return f"Sites({counts or 'none'}; {len(self.unread)} unread)"
