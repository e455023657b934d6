"""`python -m rankwise.sites.certify TYPE…`: certify model types of transformers on small random models.

With `--rows` it prints a line of JSON for each type and each variant of its configuration, which is how the release run
calls it; `--own` leaves the variants out.
"""

from __future__ import annotations

import sys
import warnings

import torch
from rich.console import Console

from rankwise.sites.certify.survey import as_line, rows
from rankwise.sites.certify.tiny import model_types
from rankwise.sites.certify.trial import attempt


def main(words: list[str]) -> int:
    """Print the proofs of each type; the exit code is 1 where one of them is not fully certified."""
    warnings.simplefilter("ignore")
    types = [word for word in words if not word.startswith("--")] or model_types()
    if "--rows" in words:
        torch.set_num_threads(1)
        for model_type in types:
            for row in rows(model_type, every_variant="--own" not in words):
                print(as_line(row), flush=True)
        return 0
    console = Console(width=160)
    passed = 0
    for model_type in types:
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
