"""Certify one model type on small random models of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from rankwise.sites.certify.certificates import Certificates
from rankwise.sites.certify.prove import certify
from rankwise.sites.certify.release import type_of
from rankwise.sites.certify.saved import saved_sites
from rankwise.sites.certify.tiny import TinyError, large_model, tiny_models
from rankwise.sites.find import find
from rankwise.sites.site import Site


@dataclass(frozen=True)
class Trial:
    """What became of one model type.

    Arguments:
        model_type: the type.
        changes: configuration keys that were set.
        certificates: the proofs of the best attempt, or None where none was made.
        label: how the model was made small.
        reason: why there is no certificate.
        unread: attention parameters that no site covers, with the reason.
        config: the configuration that was proved.
        signatures: what was proved, in the live model and in its files, by the type that it is filed under.
    """

    model_type: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    certificates: Certificates | None = None
    label: str = ""
    reason: str = ""
    unread: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    signatures: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def built(self) -> bool:
        """Whether any model of the type was built."""
        return bool(self.label)

    @property
    def proved(self) -> list[str]:
        """The sites whose value proof passed."""
        certificates = {} if self.certificates is None else self.certificates
        return [name for name, each in certificates.items() if each.passed and each.orientation]


def attempt(model_type: str, changes: Mapping[str, Any] | None = None, *, seconds: int = 60) -> Trial:
    """Certify a type on the first small model of it on which every site passes, or else on the best.

    Arguments:
        model_type: a model type of transformers.
        changes: configuration keys to set beside the sizes.
        seconds: the longest that all its models together may compute.
    """
    changes = changes or {}
    best = Trial(model_type, changes, reason="no model of it ran")
    try:
        with _at_most(seconds):
            for label, model in tiny_models(model_type, changes):
                best = best if best.label else replace(best, label=label)
                trial = _tried(Trial(model_type, changes, label=label), model)
                better = best.certificates is None and (trial.certificates is not None or not best.config)
                if better or len(trial.proved) > len(best.proved):
                    best = trial
                if trial.certificates is not None and (trial.certificates or _misread(trial.certificates)):
                    return trial
    except TinyError as error:
        return _listed(replace(best, reason=str(error)))
    except _TooLong:
        late = f"not done after computing for {seconds} s"
        return best if best.certificates is not None else replace(best, reason=late)
    return best


def _tried(trial: Trial, model: nn.Module) -> Trial:
    sites = find(model)
    config: Any = model.config
    trial = replace(trial, unread={each.parameter: each.reason for each in sites.unread}, config=config.to_dict())
    certificates = certify(sites, model)
    if not len(certificates):
        return replace(trial, reason="no attention site was found")
    trial = replace(trial, certificates=certificates)
    return replace(trial, signatures=_signatures(model, [certificates.sites[name] for name in trial.proved]))


def _listed(trial: Trial) -> Trial:
    """A type that does not build small: what is unread of it as large as it is, without numbers."""
    try:
        sites = find(large_model(trial.model_type))
    except Exception:
        return trial  # as large as it is, it does not build either: the reason is said
    found = sum(site.attention is not None for site in sites)
    return replace(
        trial,
        label="its own sizes, without numbers",
        unread={each.parameter: each.reason for each in sites.unread},
        reason=f"{found} attention sites, none of them tried: {trial.reason}",
    )


def _signatures(model: nn.Module, proved: Sequence[Site]) -> dict[str, frozenset[str]]:
    """What live sites are filed under, and the same sites in a checkpoint."""
    found: dict[str, set[str]] = {}
    for site in [*proved, *saved_sites(model, proved)]:
        assert site.attention is not None
        found.setdefault(type_of(site), set()).add(site.attention.signature)
    return {model_type: frozenset(marks) for model_type, marks in found.items()}


def _misread(certificates: Certificates) -> bool:
    """Whether numbers were seen and are others: no smaller or larger model would give them."""
    return any(each.value.status == "failed" for each in certificates.values())


class _TooLong(BaseException):
    """Not an `Exception`, so that no handler for a model's own errors takes it."""


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Raise after so many seconds of this process's own computing: a busy machine must find what an idle one does."""
    if not hasattr(signal, "SIGPROF"):  # not on Windows
        yield
        return

    def stop(*_: Any) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
