"""What goes wrong, said in one line: what was given, what was expected, and the fix."""

from __future__ import annotations

import importlib
from types import ModuleType


class RankwiseError(ValueError):
    """Base of every error that a user can cause and mend; the command line prints its text and exits with 2."""


class UserError(RankwiseError):
    """Something given to Rankwise cannot be used: the text names it, what was expected, and the fix."""


class CheckpointError(UserError):
    """A checkpoint cannot be read, or not be trusted: the text names the file and what is wrong with it."""


class MissingExtra(RankwiseError, ImportError):
    """An optional library is not installed: the text names the extra that brings it."""


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional library, or say in one line which extra brings it.

    >>> require("json", extra="report").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtra(
            f"{module} is not installed: it comes with the extra '{extra}' (pip install 'rankwise[{extra}]')"
        ) from error
