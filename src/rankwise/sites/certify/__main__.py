"""`python -m rankwise.sites.certify --rows TYPE…`: the rows of model types as lines of JSON, for the release run.

After the rows of each type it prints `done TYPE`; `--own` leaves the variants of configurations out.
"""

from __future__ import annotations

import sys
import warnings

import torch

from rankwise.sites.certify.row import as_line, rows


def main(words: list[str]) -> None:
    """Print the rows of each type."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for model_type in (word for word in words if not word.startswith("--")):
        for row in rows(model_type, every_variant="--own" not in words):
            print(as_line(row), flush=True)
        print(f"done {model_type}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
