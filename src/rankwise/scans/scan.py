"""Scan a checkpoint or a model: every product's spectrum, measures and balance, one site at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from rankwise.errors import UserError
from rankwise.product.catalogue import MEASURES
from rankwise.scans.assess import assess
from rankwise.scans.findings import findings
from rankwise.scans.held import Held
from rankwise.scans.journal import Journal, fingerprint
from rankwise.scans.select import Selection
from rankwise.scans.settings import WITH_SPECTRA, Settings
from rankwise.sites.checkpoints import Checkpoint, open_checkpoint
from rankwise.sites.find import find
from rankwise.sites.site import Site
from rankwise.sites.sites import Sites, Unread
from rankwise.sites.source import Source
from rankwise.text import printable

if TYPE_CHECKING:
    import pandas
    from rich.console import RenderableType

FORMAT, VERSION = "rankwise-scan", 1

Progress = Callable[[Site, int, int], None]
"""Called before each site with the bytes read so far and the bytes in all."""


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
        if self._record is None:
            self.run()
        assert self._record is not None
        return self._record

    @property
    def findings(self) -> list[dict[str, Any]]:
        """What stands out, most telling first."""
        return self.record["findings"]

    @cached_property
    def fingerprint(self) -> str:
        """A name for this scan, by which an interrupted one is found again."""
        entries = getattr(self._tensors, "entries", {})
        stored = [(name, entry.shape, entry.dtype, entry.file) for name, entry in entries.items()]
        return fingerprint(self.source, _stamp(self.source), stored, self.settings.record(), version("rankwise"))

    def run(self, *, progress: Progress | None = None, resume: bool = False, journal: bool = False) -> dict[str, Any]:
        """Compute everything now.

        Arguments:
            progress: called before each site.
            resume: go on where an interrupted scan of the same checkpoint and settings stopped.
            journal: keep every site's record on disk as it comes, for a later `resume`.

        Returns:
            the record. A KeyboardInterrupt leaves a record with `complete` false behind, and is raised again.
        """
        log = Journal(self.fingerprint, resume=resume) if journal or resume else None
        records: dict[str, dict[str, Any]] = dict(log.done) if log is not None else {}
        complete = False
        try:
            for name, found in self._assessed(records, progress):
                records[name] = found
                if log is not None:
                    log.add(found)
            complete = True
        finally:
            if log is not None:
                log.close(finished=complete)
            done = [records[site.name] for site in self.sites if site.name in records]
            self._record = self._whole(done, complete=complete)
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

        write_page(self.record, path)
        return Path(path)

    def save(self, path: str | Path) -> Path:
        """Write the record as JSON, whole or not at all."""
        return write_whole(path, json.dumps(self.record, allow_nan=False))

    def __rich__(self) -> RenderableType:
        return self.table()

    def __repr__(self) -> str:
        return f"Scan({printable(self.source)!r}: {self.sites!r})"

    def _assessed(self, done: Mapping[str, Any], progress: Progress | None):
        todo = [site for site in self.sites if site.name not in done]
        held = None
        if isinstance(self._tensors, Checkpoint):
            held = Held(self._tensors, effective=self.settings.weights == "effective")
        sizes = [held.bytes_of(site) if held is not None else 1 for site in todo]
        read = 0
        try:
            for position, site in enumerate(todo):
                if progress is not None:
                    progress(site, read, sum(sizes))
                if held is not None:
                    held.hold(site, todo[position + 1] if position + 1 < len(todo) else None)
                yield site.name, self.assess(site, held if held is not None else self._tensors)
                read += sizes[position]
        finally:
            if held is not None:
                held.close()

    def _whole(self, sites: list[dict[str, Any]], *, complete: bool) -> dict[str, Any]:
        record = {
            "format": FORMAT,
            "version": VERSION,
            "rankwise": version("rankwise"),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "source": self.source,
            "base": None,
            "model": _model(self._config),
            "settings": self.settings.record(),
            "notes": list(self.notes),
            "complete": complete,
            "measures": measure_records(self.settings.measures),
            "sites": sites,
            "unread": [
                {"parameter": each.parameter, "shape": list(each.shape), "reason": each.reason} for each in self.unread
            ],
        }
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
    if select is not None or spectra is not None:
        from dataclasses import replace

        selection = Selection.parse([select]) if select is not None else settings.selection
        kinds = frozenset(spectra.split(",")) if spectra is not None else settings.spectra
        settings = replace(settings, selection=selection, spectra=kinds)
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


def measure_records(names: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """What each measure is, for whoever reads the record without the library."""
    chosen = [MEASURES[name] for name in names]
    return {each.name: {"title": each.title, "formula": each.formula, "meaning": each.meaning} for each in chosen}


def write_whole(path: str | Path, text: str) -> Path:
    """Write a text file so that a reader finds the old one or the whole new one, never a part."""
    target = Path(path)
    try:
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(target)
    except OSError as error:
        raise UserError(f"cannot write {printable(target)}: {error.strerror}") from None
    return target


def _model(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The configuration's plain entries: enough to say what the sizes came from."""
    if config is None:
        return {"type": None, "config": {}}
    plain = {key: value for key, value in config.items() if isinstance(value, int | float | str | bool)}
    return {"type": config.get("model_type"), "config": plain}


def _stamp(source: str) -> list[tuple[str, int, int]]:
    """Sizes and times of the files behind a local source."""
    path = Path(source)
    try:
        files = [path] if path.is_file() else sorted(each for each in path.iterdir() if each.is_file())
        return [(each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in files]
    except OSError:
        return []


__all__ = ["WITH_SPECTRA", "Scan", "scan"]
