"""The page of the theory's figures: what `rankwise theory gallery --json` wrote, with sliders for alpha and lambda."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankwise.errors import UserError
from rankwise.files import write_whole
from rankwise.report.document import assemble
from rankwise.report.packing import packed, script_json

FORMAT, VERSION = "rankwise.theory.gallery", 1
SCRIPTS = ("format.js", "charts.js", "gallery.js")
# These lists of a record hold whole curves.
CURVES = {"times", "losses", "products", "values", "imbalance", "law", "gap", "unperturbed", "perturbed"}


def render_gallery(record: Mapping[str, Any]) -> str:
    """The page as text.

    Arguments:
        record: what `rankwise.theory.gallery.gallery` returned, or the same read from a JSON file.
    """
    if not isinstance(record, Mapping) or record.get("format") != FORMAT:
        raise UserError("this is no gallery of the theory: give what 'rankwise theory gallery --json' printed")
    if record.get("version") != VERSION:
        raise UserError(
            f"the gallery is of version {record.get('version')}, this Rankwise reads version {VERSION}: compute it "
            "anew with 'rankwise theory gallery'"
        )
    try:
        return assemble(
            "gallery.html.j2",
            scripts=SCRIPTS,
            data=script_json(_packed(record)),
            settings=record["settings"],
            rankwise=str(record["rankwise"]),
            created=str(record["created"]),
            alphas=[f"{run['alpha']:g}" for run in record["diagonal"]["runs"]],
            smallest_full=f"{record['matrices']['runs'][-1]['alpha']:g}",
            decays=[f"{run['decay']:g}" for run in record["decay"]["runs"]],
            ending=str(record["diagonal"]["ending"]),
            perturbed=record["diagonal"]["perturbations"],
        )
    except (KeyError, TypeError, IndexError) as error:
        raise UserError(
            f"the gallery is not complete ({type(error).__name__}: {error}): compute it anew with 'rankwise theory "
            "gallery'"
        ) from None


def write_gallery(record: Mapping[str, Any], path: str | Path) -> Path:
    """Render the page into a file, whose folder must exist; returns its path."""
    return write_whole(path, render_gallery(record))


def _packed(value: Any, name: str = "") -> Any:
    """The record with its curves as float32, and lists of curves as lists of those."""
    if isinstance(value, Mapping):
        return {key: _packed(one, name if name in CURVES else key) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        if name in CURVES and value and not isinstance(value[0], Sequence):
            return packed(value)
        return [_packed(one, name) for one in value]
    return value
