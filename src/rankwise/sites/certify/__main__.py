"""`python -m rankwise.sites.certify TYPE…`: certify model types of transformers on small random models."""

from __future__ import annotations

import sys
import warnings

from rich.console import Console

from rankwise.sites.certify.tiny import model_types
from rankwise.sites.certify.trial import attempt


def main(types: list[str]) -> int:
    """Print the proofs of each type; the exit code is 1 where one of them is not fully certified."""
    console = Console(width=160)
    warnings.simplefilter("ignore")
    passed = 0
    for model_type in types or model_types():
        trial = attempt(model_type)
        console.rule(f"{model_type}: {trial.label}")
        if trial.certificates is not None:
            console.print(trial.certificates)
        if trial.reason:
            console.print(trial.reason, markup=False)
        for parameter, reason in list(trial.unread.items())[:12]:
            console.print(f"unread {parameter}: {reason}", markup=False, highlight=False)
        passed += bool(trial.certificates)
    console.print(f"{passed} of {len(types)} types fully certified")
    return 0 if passed == len(types) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
