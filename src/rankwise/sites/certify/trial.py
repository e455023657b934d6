"""Certify one model type on small random models of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rankwise.sites.certify.certificates import Certificates
from rankwise.sites.certify.prove import certify
from rankwise.sites.certify.tiny import TinyError, tiny_models
from rankwise.sites.find import find


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
    """

    model_type: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    certificates: Certificates | None = None
    label: str = ""
    reason: str = ""
    unread: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def proved(self) -> list[str]:
        """The sites whose value proof passed."""
        return [name for name, each in (self.certificates or {}).items() if each.passed and each.orientation]


def attempt(model_type: str, changes: Mapping[str, Any] | None = None, *, seconds: int = 60) -> Trial:
    """Certify a type on the first small model of it on which every site passes, or else on the best.

    Arguments:
        model_type: a model type of transformers.
        changes: configuration keys to set beside the sizes.
        seconds: the longest that all its models together may take.
    """
    best = Trial(model_type, changes or {}, reason="no model of it ran")
    try:
        with _at_most(seconds):
            for label, model in tiny_models(model_type, changes):
                sites = find(model)
                unread = {each.parameter: each.reason for each in sites.unread}
                certificates = certify(sites, model)
                config: Any = model.config
                trial = Trial(model_type, changes or {}, certificates, label, "", unread, config.to_dict())
                if not len(certificates):
                    return Trial(model_type, changes or {}, None, label, "no attention site was found", unread)
                if best.certificates is None or len(trial.proved) > len(best.proved):
                    best = trial
                if certificates or any(each.value.status == "failed" for each in certificates.values()):
                    return trial
    except TinyError as error:
        return Trial(model_type, changes or {}, reason=str(error))
    except _TooLong:
        return (
            best
            if best.certificates is not None
            else Trial(model_type, changes or {}, reason=f"not done after {seconds} s")
        )
    return best


class _TooLong(BaseException):
    """Not an `Exception`, so that no handler for a model's own errors takes it."""


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
