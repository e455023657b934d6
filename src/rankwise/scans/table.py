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

from rankwise.text import printable

# What stands out should still be on the screen when the tables end: longer ones are cut, and say so.
MOST_ROWS = 60
MOST_EXAMPLES = 4
MOST_UNREAD = 8
LEFT = {"site", "matrix", "proved", "in"}

WORDS = {
    "failed": "their numbers could not be computed",
    "dead": "next to nothing passes through them",
    "collapsed": "they use far fewer directions than random factors would",
    "spiked": "one direction outweighs all others together",
    "unbalanced": "decay on the factors charges far more than the nuclear norm of the product",
    "random": "random factors could have these spectra",
}

Columns = tuple[tuple[str, Callable[[Any], str]], ...]


def scan_table(record: Mapping[str, Any], *, rows: int = MOST_ROWS) -> RenderableType:
    """A row for each product, with its heads' mean measures beside the null's, and a row for each matrix."""
    products = [site for site in record["sites"] if len(site["widths"]) > 2]
    matrices = [site for site in record["sites"] if len(site["widths"]) == 2]
    parts: list[RenderableType] = []
    if products:
        heads = sum(len(site["heads"]) for site in products)
        title = f"{len(products)} sites, {heads} products; mean over heads / null of random factors"
        parts.append(cells(title, products, PRODUCT_COLUMNS, rows))
    if matrices:
        parts.append(cells(f"{len(matrices)} single matrices", matrices, MATRIX_COLUMNS, rows if not products else 8))
    return Group(*parts)


def summary(record: Mapping[str, Any]) -> RenderableType:
    """What stands out, what was not read, and how the numbers were computed."""
    return Group(*_findings(record), *_unread(record), *_method(record))


def cells(title: str, entries: Sequence[Any], columns: Columns, rows: int) -> Table:
    """A table of a row for each entry, cut at a number of rows, and saying so."""
    table = Table(
        title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    for name, _ in columns:
        # Headings may break between words; numbers hold no spaces, so that they never do.
        table.add_column(name, justify="left" if name in LEFT else "right", overflow="fold")
    for entry in entries[:rows]:
        table.add_row(*(Text(cell(entry)) for _, cell in columns))
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


def _gap(site: Mapping[str, Any]) -> str:
    """The mean relative gap of the law that holds: of groups, of frequency pairs, or of heads."""
    laws = [head.get("pairs") or head.get("balance") for head in site["heads"]]
    if site.get("group") and not site["rotary"]:
        laws = site["group"]
    own = average((law["relative"] if law else None for law in laws), "{:.1%}")
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
    ("matrix", lambda site: printable(site["name"].rpartition(".")[0])),
    (
        "shape",
        lambda site: "x".join(map(str, [*([len(site["heads"])] if len(site["heads"]) > 1 else []), *site["widths"]])),
    ),
    ("Frobenius", lambda site: average(measured(site, "frobenius_norm"))),
    ("s_1", lambda site: average(measured(site, "operator_norm"))),
    ("stable rank", lambda site: average(measured(site, "stable_rank"))),
    ("error", _worst),
)


def _findings(record: Mapping[str, Any]) -> Iterator[RenderableType]:
    found = record["findings"]
    if not found:
        yield Text("Nothing stands out: no head is dead, collapsed, spiked, unbalanced or random.")
        return
    yield Text("What stands out", style="bold")
    kinds = Counter(finding["kind"] for finding in found)
    for kind, count in kinds.items():
        examples = [finding for finding in found if finding["kind"] == kind][:MOST_EXAMPLES]
        if kind in WORDS:
            yield Text(f"  {count} {kind}: {WORDS[kind]}", style="bold")
        for finding in examples:
            yield Padding(Text(printable(finding["text"], limit=240)), (0, 0, 0, 4))
        if count > len(examples):
            yield Text(f"    … and {count - len(examples)} more (--json and --html hold all)", style="dim")


def _unread(record: Mapping[str, Any]) -> Iterator[RenderableType]:
    unread = record["unread"]
    if not unread:
        yield Text("Unread: nothing; every matrix belongs to a site.")
        return
    yield Text(f"Unread: {len(unread)} parameters", style="bold")
    reasons: dict[str, list[str]] = {}
    for entry in unread:
        reasons.setdefault(entry["reason"], []).append(entry["parameter"])
    for reason, names in list(reasons.items())[:MOST_UNREAD]:
        example = printable(names[0], limit=70)
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield Padding(Text(f"{example}{more}: {printable(reason, limit=400)}"), (0, 0, 0, 2))
    if len(reasons) > MOST_UNREAD:
        yield Text(f"  … and {len(reasons) - MOST_UNREAD} more reasons", style="dim")


def _method(record: Mapping[str, Any]) -> Iterator[RenderableType]:
    methods = Counter(head["method"] for site in record["sites"] for head in site["heads"])
    certified = Counter(site["certified"] for site in record["sites"] if site["kind"] in ("qk", "ov"))
    if methods:
        yield Text("Computed by " + ", ".join(f"{name} ({count})" for name, count in methods.items()), style="dim")
    if certified:
        words = {"here": "proved on this model", "release": "proved in this release", "no": "not proved"}
        counts = ", ".join(f"{count} {words[key]}" for key, count in certified.items())
        yield Text(f"Attention layouts: {counts}", style="dim")
    for note in record["notes"]:
        yield Text(f"Note: {printable(note, limit=300)}", style="dim")
    if not record["complete"]:
        yield Text("This scan was interrupted: --resume goes on where it stopped.", style="bold")
