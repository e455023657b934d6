"""Scan a checkpoint or a model: every product's spectrum, measures and balance, one site at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankwise.errors import CheckpointError, UserError
from rankwise.files import write_whole
from rankwise.scans.assess import assess
from rankwise.scans.findings import findings
from rankwise.scans.held import Held
from rankwise.scans.journal import Journal, Subject, digest
from rankwise.scans.record import heading, unread_record
from rankwise.scans.select import Selection
from rankwise.scans.settings import WITH_SPECTRA, Settings, parse_kinds
from rankwise.sites.checkpoints import Checkpoint, open_checkpoint
from rankwise.sites.find import find
from rankwise.sites.site import Site
from rankwise.sites.sites import Sites, Unread
from rankwise.sites.source import Source
from rankwise.text import printable

if TYPE_CHECKING:
    import pandas
    from rich.console import RenderableType

Progress = Callable[[str, int, int], None]
"""Called before each step with the name of what is computed, what has been read so far, and what there is in all."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A part of a scan that is computed, kept and resumed as one.

    Arguments:
        key: under which its record is kept.
        name: what it is, for people.
        cost: the bytes that it reads.
        compute: its record.
    """

    key: str
    name: str
    cost: int
    compute: Callable[[], dict[str, Any]]


class Scan:
    """A scan of a checkpoint or a model; numbers are computed when they are first asked for.

    Arguments:
        source: what was given, for people.
        tensors: where the tensors are.
        sites: the selected sites.
        settings: what to compute.
        config: the model's configuration, if it is known.
        notes: what was decided while opening.
    """

    base: str | None = None

    def __init__(
        self,
        source: str,
        *,
        tensors: Checkpoint | nn.Module | Mapping[str, Tensor],
        sites: Sites,
        settings: Settings,
        config: Mapping[str, Any] | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.source = source
        self.sites = sites
        self.settings = settings
        self.notes = notes
        self._tensors = tensors
        self._config = config
        self._record: dict[str, Any] | None = None

    @property
    def unread(self) -> tuple[Unread, ...]:
        """The matrix parameters that no site covers, with the reason."""
        return self.sites.unread

    @property
    def record(self) -> dict[str, Any]:
        """Everything the scan found, as docs/scan-format.md describes it; computed on first use."""
        return self._record if self._record is not None else self.run()

    @property
    def findings(self) -> list[dict[str, Any]]:
        """What stands out, most telling first."""
        return self.record["findings"]

    @property
    def size(self) -> int:
        """How many parts there are to compute."""
        return len(self.sites)

    @cached_property
    def subject(self) -> Subject:
        """What this scan computes, by which an interrupted one is found again; of checkpoints alone."""
        opened = self._checkpoints()
        return Subject(
            source=_place(self.source),
            base=None if self.base is None else _place(self.base),
            contents=digest([(each.entries, each.stamps, each.config, each.adapter) for each in opened]),
            sites=digest(list(self.sites)),
            settings=self.settings.record(),
            rankwise=version("rankwise"),
        )

    def journal(self, *, resume: bool = False) -> Journal:
        """A place on disk that keeps what `run` finds as it finds it.

        Arguments:
            resume: go on where an interrupted scan of the same checkpoint and settings stopped.
        """
        if not self._checkpoints():
            raise UserError("only a scan of checkpoints can be resumed: nothing tells one model in memory from another")
        return Journal(self.subject, resume=resume)

    def run(self, *, progress: Progress | None = None, journal: Journal | None = None) -> dict[str, Any]:
        """Compute everything now.

        Arguments:
            progress: called before each step.
            journal: keeps every record as it comes; what it holds already is not computed again.

        Returns:
            the record. A KeyboardInterrupt leaves a record with `complete` false behind, and is raised again.
        """
        found: dict[str, dict[str, Any]] = dict(journal.done) if journal is not None else {}
        complete = False
        try:
            with self._reader() as reader:
                steps = self._steps(reader, found)
                total, read = sum(step.cost for step in steps), 0
                for step in steps:
                    if progress is not None:
                        progress(step.name, read, total)
                    found[step.key] = step.compute()
                    if journal is not None:
                        journal.add(step.key, found[step.key])
                    read += step.cost
            complete = True
        finally:
            self._record = self._whole(found, complete=complete)
        return self._record

    def assess(self, site: Site, source: Source) -> dict[str, Any]:
        """The record of one site."""
        return assess(site, source, self.settings)

    def table(self) -> RenderableType:
        """The scan as a table: one row for each site, its heads summed up."""
        from rankwise.scans.table import scan_table

        return scan_table(self.record)

    def to_frame(self) -> pandas.DataFrame:
        """The scan as a data frame: one row for each head, a column for each measure, its error beside it."""
        from rankwise.scans.frame import to_frame

        return to_frame(self.record)

    def report(self, path: str | Path) -> Path:
        """Write the scan as one self-contained HTML page."""
        from rankwise.report.page import write_page

        return write_page(self.record, path)

    def save(self, path: str | Path) -> Path:
        """Write the record as JSON, whole or not at all."""
        return write_whole(path, json.dumps(self.record, allow_nan=False))

    def __rich__(self) -> RenderableType:
        return self.table()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({printable(self.source)!r}: {self.sites!r})"

    def _checkpoints(self) -> list[Checkpoint]:
        return [self._tensors] if isinstance(self._tensors, Checkpoint) else []

    def _reader(self) -> AbstractContextManager[Any]:
        if isinstance(self._tensors, Checkpoint):
            return Held(self._tensors, effective=self.settings.weights == "effective")
        return nullcontext(self._tensors)

    def _steps(self, reader: Any, done: Collection[str]) -> list[Step]:
        """What is left to do; each step fetches what the next one needs while it computes."""
        todo = [site for site in self.sites if site.name not in done]
        steps = []
        for site, following in zip(todo, [*todo[1:], None], strict=False):
            cost = reader.bytes_of(site) if isinstance(reader, Held) else 1
            compute = partial(self._of_site, site, following, reader)
            steps.append(Step(key=site.name, name=site.name, cost=cost, compute=compute))
        return steps

    def _of_site(self, site: Site, following: Site | None, reader: Any) -> dict[str, Any]:
        """A site's record, or why it is refused: one that cannot be computed does not end the scan."""
        if isinstance(reader, Held):
            reader.hold(site, following)
        try:
            return self.assess(site, reader)
        except CheckpointError:
            raise
        except UserError as error:
            return {"refused": str(error), "parameters": list(site.parameters)}
        except torch.OutOfMemoryError:
            raise UserError(
                f"{printable(site.name)} does not fit into the memory of {self.settings.device}: compute on the cpu"
            ) from None

    def _whole(self, found: Mapping[str, dict[str, Any]], *, complete: bool) -> dict[str, Any]:
        done = [found[site.name] for site in self.sites if site.name in found]
        refused = [
            Unread(parameter, (), each["refused"])
            for each in done
            if "refused" in each
            for parameter in each["parameters"]
        ]
        record = heading(
            self.source,
            base=self.base,
            config=self._config,
            settings=self.settings,
            notes=self.notes,
            complete=complete,
        )
        record["sites"] = [each for each in done if "refused" not in each]
        record["unread"] = [unread_record(each) for each in (*self.unread, *refused)]
        return record | {"findings": findings(record)}


def scan(
    source: str | Path | nn.Module | Mapping[str, Tensor],
    *,
    config: Mapping[str, Any] | None = None,
    select: str | None = None,
    settings: Settings | None = None,
    spectra: str | None = None,
) -> Scan:
    """Every product of a checkpoint or a model: opened now, computed when a number is asked for.

    Arguments:
        source: a checkpoint (a directory, a file, an index, `hf://org/name`, a URL), a live module, or a mapping of
            names to tensors.
        config: the model's configuration, where the source does not bring it.
        select: which sites, as `kind=qk,layer=0-3`; all by default.
        settings: how to compute, in place of the defaults.
        spectra: kinds whose spectra are computed, joined by commas; attention and factorized layers by default.

    Returns:
        a `Scan`: `.sites`, `.unread`, `.table()`, `.to_frame()`, `.report("out.html")`.
    """
    settings = settings or Settings()
    if select is not None:
        settings = replace(settings, selection=Selection.parse([select]))
    if spectra is not None:
        settings = replace(settings, spectra=parse_kinds(spectra))
    if isinstance(source, str | Path):
        checkpoint = open_checkpoint(source)
        tensors: Any = checkpoint
        name, notes = str(source), tuple(checkpoint.notes)
    else:
        tensors, notes = source, ()
        name = type(source).__name__
    sites = find(tensors, config=config)
    known: Any = config if config is not None else getattr(tensors, "config", None)
    if hasattr(known, "to_dict"):
        known = known.to_dict()
    if not len(sites) and not sites.unread:
        raise UserError(f"{printable(name)} holds no matrix: there is nothing to scan")
    return Scan(
        name,
        tensors=tensors,
        sites=settings.selection(sites),
        settings=settings,
        config=known if isinstance(known, Mapping) else None,
        notes=notes,
    )


def _place(source: str) -> str:
    """A source as it is the same from wherever it is named."""
    return source if "://" in source else os.path.abspath(os.path.expanduser(source))


__all__ = ["WITH_SPECTRA", "Scan", "scan"]
