"""Certify every model type of the installed transformers, in processes of their own, and keep what was proved."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rankwise.errors import require
from rankwise.sites.certify.reading import switches_read
from rankwise.sites.certify.release import empty_table, switches
from rankwise.sites.certify.trial import Trial, attempt
from rankwise.sites.certify.variants import variants

# What a child prints goes line by line; a type that takes its process down costs that type alone.
_LONGEST_SILENCE = 240


@dataclass(frozen=True)
class Row:
    """What was found out about one model type under one change of its configuration.

    Arguments:
        model_type: the type.
        changes: configuration keys that were set, none for the type's own defaults.
        sites: how many attention sites were found.
        passed: how many were certified, `by_value` of them by their logits or outputs.
        largest_error: the largest relative error of the value proofs that passed.
        failures: the sites that were not certified, with the reason.
        unread: how many attention matrices no site covers, and the first reason given.
        reason: why nothing was tried.
        signatures: what was proved, by the type that governs it.
        defaults: the switches of each governing type's configuration, as transformers fills them in.
    """

    model_type: str
    changes: Mapping[str, Any]
    sites: int = 0
    passed: int = 0
    by_value: int = 0
    largest_error: float = 0.0
    failures: Mapping[str, str] | None = None
    unread: int = 0
    unread_reason: str = ""
    reason: str = ""
    signatures: Mapping[str, Sequence[str]] | None = None
    defaults: Mapping[str, Mapping[str, Any]] | None = None


def row_of(trial: Trial) -> Row:
    """A trial as a record that can be written down."""
    certificates = trial.certificates
    if certificates is None:
        reasons = list(trial.unread.values())
        return Row(
            trial.model_type,
            dict(trial.changes),
            unread=len(reasons),
            unread_reason=reasons[0] if reasons else "",
            reason=trial.reason,
        )
    reasons = list(trial.unread.values())
    return Row(
        trial.model_type,
        dict(trial.changes),
        sites=len(certificates),
        passed=len(certificates) - len(certificates.failures),
        by_value=len(trial.proved),
        largest_error=max((certificates[name].value.error or 0.0 for name in trial.proved), default=0.0),
        failures=dict(list(certificates.failures.items())[:4]),
        unread=len(reasons),
        unread_reason=reasons[0] if reasons else "",
        signatures={model_type: sorted(marks) for model_type, marks in trial.signatures.items()},
        defaults=_defaults(trial.config) if not trial.changes else {},
    )


def survey(types: Sequence[str], *, processes: int = 2, chunk: int = 20, every_variant: bool = True) -> Iterator[Row]:
    """The rows of many types, as they come, from up to `processes` processes at once."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    chunks = [types[start : start + chunk] for start in range(0, len(types), chunk)]
    with ThreadPoolExecutor(processes) as pool:
        for done in as_completed(pool.submit(_chunk, part, every_variant) for part in chunks):
            yield from done.result()


def rows(model_type: str, *, every_variant: bool = True) -> Iterator[Row]:
    """The row of a type's own configuration, and where that has a certified site, those of its variants.

    What failed with some switches turned is not tried again with these and others.
    """
    failed: list[Mapping[str, Any]] = []
    for changes in variants(model_type):
        if any(less.items() <= changes.items() for less in failed):
            continue
        with empty_table():
            row = row_of(attempt(model_type, changes, seconds=60 if not changes else 20))
        yield row
        if not changes and (not row.by_value or not every_variant):
            return
        if changes and not row.by_value:
            failed.append(changes)


def release_table(found: Iterable[Row]) -> dict[str, Any]:
    """The release certificates: for each governing type its switches and the signatures that were proved."""
    transformers, torch = require("transformers", extra="hf"), require("torch", extra="hf")
    defaults: dict[str, Mapping[str, Any]] = {}
    proved: dict[str, set[str]] = {}
    for row in found:
        for model_type, facts in (row.defaults or {}).items():
            # Inside another model a type may have other defaults: its own run says which are its own.
            if model_type == row.model_type or model_type not in defaults:
                defaults[model_type] = facts
        for model_type, marks in (row.signatures or {}).items():
            proved.setdefault(model_type, set()).update(marks)
    types = {name: _entry(name, defaults.get(name, {}), proved[name]) for name in sorted(proved)}
    return {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "types": types}


def _entry(model_type: str, defaults: Mapping[str, Any], proved: Iterable[str]) -> dict[str, Any]:
    reads = [key for key in switches_read(model_type) if key not in defaults]
    return {"defaults": dict(sorted(defaults.items())), "reads": reads, "proved": sorted(proved)}


def _chunk(types: Sequence[str], every_variant: bool) -> list[Row]:
    found: list[Row] = []
    left = list(types)
    while left:
        command = [sys.executable, "-W", "ignore", "-m", "rankwise.sites.certify", "--rows", *left]
        if not every_variant:
            command.append("--own")
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=_LONGEST_SILENCE * len(left), check=False
        )
        lines = [line for line in process.stdout.splitlines() if line.startswith('{"model_type"')]
        new = [Row(**json.loads(line)) for line in lines]
        found += new
        done = {row.model_type for row in new}
        if process.returncode == 0:
            return found
        broken = next((each for each in left if each not in done), left[-1])
        words = process.stderr.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        found.append(Row(broken, {}, reason=f"its process ended: {words[0][:200]}"))
        left = left[left.index(broken) + 1 :]
    return found


def _defaults(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The switches of a configuration and of those nested in it, by model type."""
    found = {config["model_type"]: switches(config)} if config.get("model_type") else {}
    for value in config.values():
        if isinstance(value, Mapping):
            found |= {name: facts for name, facts in _defaults(value).items() if name not in found}
    return found


def as_line(row: Row) -> str:
    """One row as one line of JSON."""
    return json.dumps(asdict(row), default=str)
