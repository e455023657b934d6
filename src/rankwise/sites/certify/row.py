"""What the release run finds out about one model type under one configuration, as a record that can be written down."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rankwise.sites.certify.release import empty_table, switches
from rankwise.sites.certify.trial import Trial, attempt
from rankwise.sites.certify.variants import variants

_SECONDS, _SECONDS_OF_A_VARIANT = 60, 20


@dataclass(frozen=True)
class Row:
    """What was found out about one model type under one change of its configuration.

    Arguments:
        model_type: the type.
        changes: configuration keys that were set, none for the type's own defaults.
        built: whether a model of it was built.
        sites: how many attention sites were found.
        passed: how many were certified, `by_value` of them by their logits or outputs.
        largest_error: the largest relative error of the value proofs that passed.
        failures: the sites that were not certified, with the reason.
        unread: how many attention matrices no site covers, and the first reason given.
        reason: why nothing was tried, or nothing built.
        signatures: what was proved, by the type that governs it.
        defaults: the switches of each governing type's configuration, as transformers fills them in.
    """

    model_type: str
    changes: Mapping[str, Any]
    built: bool = True
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
            built=trial.built,
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


def rows(model_type: str, *, every_variant: bool = True) -> Iterator[Row]:
    """The row of a type's own configuration, and where that has a certified site, those of its variants.

    What failed with some switches turned is not tried again with these and others.
    """
    failed: list[Mapping[str, Any]] = []
    for changes in variants(model_type):
        if any(less.items() <= changes.items() for less in failed):
            continue
        with empty_table():
            row = row_of(attempt(model_type, changes, seconds=_SECONDS_OF_A_VARIANT if changes else _SECONDS))
        yield row
        if not changes and (not row.by_value or not every_variant):
            return
        if changes and not row.by_value:
            failed.append(changes)


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
