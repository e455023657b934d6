"""A scan in the terminal: its products, its matrices, and what stands out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rankwise.scans.dotted import Dotted
from rankwise.text import printable

# What stands out should still be on the screen when the tables end: longer ones are cut, and say so.
MOST_ROWS = 60
MOST_EXAMPLES = 4
MOST_UNREAD = 8
MOST_MATRICES = 8
NAMES = {"site", "matrix"}
LEFT = {"site", "matrix", "proved", "in, at 95 %", "stands out"}

WORDS = {
    "failed": "their numbers could not be computed",
    "dead": "next to nothing passes through them",
    "collapsed": "they use far fewer directions than random factors would",
    "spiked": "one direction outweighs all others together",
    "unbalanced": "decay on the factors charges far more than the nuclear norm of the product",
    "random": "random factors could have these spectra",
    "unchanged": "they are as they were in the base",
}

METHODS = {
    "gram32": "Grams in float32",
    "gram64": "Grams in float64",
    "qr": "QR",
    "dense": "dense SVD",
    "precise": "one-sided Jacobi",
    "krylov": "norms alone by a Krylov iteration",
    "sum of squares": "sums of squares",
}

Columns = tuple[tuple[str, Callable[[Any], str]], ...]


def scan_table(record: Mapping[str, Any], *, rows: int = MOST_ROWS) -> RenderableType:
    """A row for each site with spectra, its heads' mean measures beside the null's, and one for each with norms."""
    spectra = [site for site in record["sites"] if site["null"] is not None]
    norms = [site for site in record["sites"] if site["null"] is None]
    parts: list[RenderableType] = []
    if spectra and rows:
        heads = sum(len(site["heads"]) for site in spectra)
        title = (
            f"spectra of {count(heads, 'product')} at {count(len(spectra), 'site')}; mean over heads / random factors"
        )
        parts += [cells(title, spectra, PRODUCT_COLUMNS, rows), legend(PRODUCT_LEGEND)]
    if norms and rows:
        most = min(rows, MOST_MATRICES) if spectra else rows
        title = f"norms of {count(len(norms), 'other site' if spectra else 'site')}"
        parts += [cells(title, norms, MATRIX_COLUMNS, most)]
    return Group(*parts)


def summary(record: Mapping[str, Any]) -> RenderableType:
    """What was not read, how the numbers were computed, and at the end, where the eye is, what stands out."""
    return Group(*unread_lines(record), *method_lines(record), *_findings(record), *interrupted(record))


def count(number: int, one: str, many: str | None = None) -> str:
    """A number of things.

    >>> count(1, "head"), count(2, "head"), count(3, "matrix", "matrices")
    ('1 head', '2 heads', '3 matrices')
    """
    return f"{number} {one if number == 1 else many or one + 's'}"


def legend(text: str) -> RenderableType:
    """What the columns of a table mean."""
    return Padding(Text(text, style="dim"), (0, 0, 1, 1))


def cells(title: str, entries: Sequence[Any], columns: Columns, rows: int) -> Table:
    """A table of a row for each entry, cut at a number of rows, and saying so."""
    table = Table(
        title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    for name, _ in columns:
        # Headings may break between words; numbers hold no spaces, so that they never do.
        table.add_column(name, justify="left" if name in LEFT else "right", overflow="fold")
    for entry in entries[:rows]:
        table.add_row(*(Dotted(cell(entry)) if name in NAMES else Text(cell(entry)) for name, cell in columns))
    if len(entries) > rows:
        table.caption = f"… and {len(entries) - rows} more (--rows {len(entries)} shows all)"
    return table


def _beside_null(measure: str) -> Callable[[Mapping[str, Any]], str]:
    """The mean of a measure over the heads, and the null's."""

    def cell(site: Mapping[str, Any]) -> str:
        null = ((site["null"] or {}).get("measures", {}).get(measure) or [None])[0]
        own = average(measured(site, measure))
        return own if null is None else f"{own}/{null:.3g}"

    return cell


def law(site: Mapping[str, Any]) -> list[float | None]:
    """The relative gaps of the law that holds: of groups, of frequency pairs, or of heads."""
    laws = [head.get("pairs") or head.get("balance") for head in site["heads"]]
    if site.get("group") and not site["rotary"]:
        laws = site["group"]
    return [each["relative"] if each else None for each in laws]


def _gap(site: Mapping[str, Any]) -> str:
    own = average(law(site), "{:.1%}")
    null = ((site["null"] or {}).get("relative_gap") or [None])[0]
    return own if null is None or site["rotary"] or site.get("group") else f"{own}/{null:.1%}"


def _worst(site: Mapping[str, Any]) -> str:
    """The largest error of any singular value, as a share of that head's largest value."""
    shares = []
    for head in site["heads"]:
        top, error = head["measures"].get("operator_norm", [None, None])
        errors = head.get("errors") or [error]
        if top and None not in errors:
            shares.append(max(errors) / top)
    return f"{max(shares):.0e}" if shares else "-"


def measured(site: Mapping[str, Any], measure: str) -> Iterator[float | None]:
    """A measure of every head of a site."""
    return (head["measures"].get(measure, [None])[0] for head in site["heads"])


def average(values: Iterable[float | None], form: str = "{:.3g}") -> str:
    """The mean of the known values as text, or a dash."""
    known = [value for value in values if value is not None]
    return form.format(mean(known)) if known else "-"


PRODUCT_COLUMNS: Columns = (
    ("site", lambda site: printable(site["name"])),
    ("heads", lambda site: f"{len(site['heads'])}x{min(site['widths'])}"),
    ("s_1", lambda site: average(measured(site, "operator_norm"))),
    ("effective rank", _beside_null("effective_rank")),
    ("stable rank", _beside_null("stable_rank")),
    ("gap", _gap),
    ("error", _worst),
    ("proved", lambda site: site["certified"]),
)
MATRIX_COLUMNS: Columns = (
    ("site", lambda site: printable(site["name"])),
    (
        "shape",
        lambda site: "x".join(map(str, [*([len(site["heads"])] if len(site["heads"]) > 1 else []), *site["widths"]])),
    ),
    ("Frobenius", lambda site: average(measured(site, "frobenius_norm"))),
    ("s_1", lambda site: average(measured(site, "operator_norm"))),
    ("stable rank", lambda site: average(measured(site, "stable_rank"))),
    ("error", _worst),
)


PRODUCT_LEGEND = (
    "heads: how many, and the largest rank each can have. s_1: the largest singular value. gap: by how much the "
    "half-sum |A|^2/2 + |B|^2/2 that weight decay charges exceeds the nuclear norm of the product (0 where the factors "
    "are balanced). error: the bound on any singular value, as a share of s_1. proved: whether the layout was."
)


def _findings(record: Mapping[str, Any]) -> Iterator[RenderableType]:
    found = record["findings"]
    if not any(site["heads"] for site in record["sites"]):
        yield Text("Nothing was read.", style="bold")
        return
    yield Text("")
    if not found:
        yield Text("Nothing stands out: no head is dead, collapsed, spiked, unbalanced or random.", style="bold")
        return
    yield Text("What stands out", style="bold")
    kinds = Counter(finding["kind"] for finding in found)
    for kind, number in kinds.items():
        examples = [finding for finding in found if finding["kind"] == kind][:MOST_EXAMPLES]
        if kind in WORDS:
            yield Text(f"  {number} {kind}: {WORDS[kind]}")
        for finding in examples:
            yield Padding(Text(printable(finding["text"], limit=240)), (0, 0, 0, 4))
        if number > len(examples):
            yield Text(f"    … and {number - len(examples)} more (--json and --html hold all)", style="dim")


def unread_lines(record: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The parameters that were not read, by reason."""
    unread = record["unread"]
    if not unread:
        yield Text("Unread: nothing; every matrix belongs to a site.")
        return
    yield Text(f"Unread: {count(len(unread), 'parameter')}", style="bold")
    reasons: dict[str, list[str]] = {}
    for entry in unread:
        reasons.setdefault(entry["reason"], []).append(entry["parameter"])
    for reason, names in list(reasons.items())[:MOST_UNREAD]:
        example = printable(names[0], limit=70)
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield Padding(Text(f"{example}{more}: {printable(reason, limit=400)}"), (0, 0, 0, 2))
    if len(reasons) > MOST_UNREAD:
        yield Text(f"  … and {len(reasons) - MOST_UNREAD} more reasons", style="dim")


def method_lines(record: Mapping[str, Any]) -> Iterator[RenderableType]:
    """How the numbers were computed, what of the layouts is proved, and what was decided while reading."""
    methods = Counter(head["method"] for site in record["sites"] for head in site["heads"] if head["failure"] is None)
    certified = Counter(site["certified"] for site in record["sites"] if site["kind"] in ("qk", "ov"))
    if methods:
        counts = ", ".join(f"{METHODS.get(name, name)} ({number})" for name, number in methods.items())
        yield Text(f"Computed by {counts}", style="dim")
    if certified:
        words = {"here": "proved on this model", "release": "proved in this release", "no": "not proved"}
        counts = ", ".join(f"{number} {words[key]}" for key, number in certified.items())
        yield Text(f"Attention layouts: {counts}", style="dim")
    for note in record["notes"]:
        yield Text(f"Note: {printable(note, limit=300)}", style="dim")


def interrupted(record: Mapping[str, Any]) -> Iterator[RenderableType]:
    """A reminder that the record is a part."""
    if not record["complete"]:
        yield Text("This is a part: the work was interrupted, and --resume goes on where it stopped.", style="bold")
