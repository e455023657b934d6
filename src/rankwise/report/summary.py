"""What a scan found, in words: the headline, the findings, what was not read, and how the numbers came about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rankwise.report.packing import finite
from rankwise.report.quantities import pair
from rankwise.report.record import ATTENTION, Record, finding_places, finding_text, step_of
from rankwise.report.words import CERTIFICATES, FINDINGS, METHODS, title_of
from rankwise.text import printable

# What the evidence of a finding is called where the measures have no title for it.
EVIDENCE = {"null": "random factors", "share": "share", "median": "median of its kind"}
# How many findings of a kind are in sight before the rest.
SHOWN = 3


@dataclass(frozen=True)
class Finding:
    """One thing that stands out, with its evidence and the head that it is about (`target` is empty if none)."""

    kind: str
    place: str = field(kw_only=True)
    text: str = field(kw_only=True)
    evidence: tuple[tuple[str, str], ...] = field(kw_only=True)
    target: str = field(kw_only=True)


@dataclass(frozen=True)
class FindingGroup:
    """The findings of one kind: what the kind means, the first few, and the rest."""

    kind: str
    meaning: str = field(kw_only=True)
    shown: tuple[Finding, ...] = field(kw_only=True)
    rest: tuple[Finding, ...] = field(kw_only=True)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.shown) + len(self.rest)


@dataclass(frozen=True)
class MatrixChange:
    """How far a single matrix moved, and the LoRA rank that keeps each share of its change's energy.

    Arguments:
        name, shape, relative: of the matrix.
        ranks: for each share of the energy; empty with a `reason` where there is none.
        products: `(name, target, energy ranks)` of the products that the matrix is a factor of.
    """

    name: str
    shape: str = field(kw_only=True)
    relative: str = field(kw_only=True)
    ranks: Mapping[str, str] = field(kw_only=True)
    products: tuple[tuple[str, str, str], ...] = field(kw_only=True)
    reason: str = field(kw_only=True)


@dataclass(frozen=True)
class Summary:
    """The words of one scan; every text in it is safe to show once HTML-escaped.

    Arguments:
        title, type, source, base, created, version: what was scanned, and by what.
        step: the training step, of use in a series.
        counts: the numbers of the headline, each with its label.
        warnings: what the reader must know before trusting the page.
        findings: what stands out, most telling first.
        unread: for each reason the tensors that were not read, `(name, shape)`.
        ranks: for each single matrix of a diff, what a LoRA of its change would need.
        methods, certificates: `(name, count, explanation)`.
        settings, model: `(name, value)`.
        notes: what was decided while reading.
    """

    title: str
    type: str = field(kw_only=True)
    source: str = field(kw_only=True)
    base: str | None = field(kw_only=True)
    created: str = field(kw_only=True)
    version: str = field(kw_only=True)
    step: int = field(kw_only=True)
    counts: tuple[tuple[str, str], ...] = field(kw_only=True)
    warnings: tuple[str, ...] = field(kw_only=True)
    findings: tuple[Finding, ...] = field(kw_only=True)
    unread: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = field(kw_only=True)
    ranks: tuple[MatrixChange, ...] = field(kw_only=True)
    methods: tuple[tuple[str, int, str], ...] = field(kw_only=True)
    certificates: tuple[tuple[str, int, str], ...] = field(kw_only=True)
    settings: tuple[tuple[str, str], ...] = field(kw_only=True)
    model: tuple[tuple[str, str], ...] = field(kw_only=True)
    notes: tuple[str, ...] = field(kw_only=True)

    @property
    def unread_count(self) -> int:
        """The number of tensors that no site covers."""
        return sum(len(tensors) for _, tensors in self.unread)

    @property
    def finding_groups(self) -> tuple[FindingGroup, ...]:
        """The findings by kind, in the order of their first."""
        kinds: dict[str, list[Finding]] = {}
        for one in self.findings:
            kinds.setdefault(one.kind, []).append(one)
        return tuple(
            FindingGroup(kind, meaning=FINDINGS.get(kind, ""), shown=tuple(found[:SHOWN]), rest=tuple(found[SHOWN:]))
            for kind, found in kinds.items()
        )


def summarize(record: Record, position: int = 0) -> Summary:
    """The words of one record; `position` is its place in a series."""
    base = record.get("base")
    return Summary(
        title_of(record),
        type=printable((record.get("model") or {}).get("type") or "", 60),
        source=printable(record.get("source", ""), 200),
        base=None if base is None else printable(base, 200),
        created=printable(record.get("created", "")),
        version=printable(record.get("rankwise", "")),
        step=step_of(record, position),
        counts=_counts(record),
        warnings=_warnings(record),
        findings=_findings(record),
        unread=_unread(record),
        ranks=_matrix_changes(record),
        methods=_explained(_methods(record), METHODS),
        certificates=_explained(Counter(str(site["certified"]) for site in _attention(record)), CERTIFICATES),
        settings=_listed(record["settings"]),
        model=_listed(record["model"].get("config") or {}),
        notes=tuple(printable(note, 400) for note in record.get("notes") or ()),
    )


def quantity(number: float) -> str:
    """A number as prose shows it, to four significant digits.

    >>> quantity(0.123456), quantity(1200.0), quantity(1e-7)
    ('0.1235', '1,200', '1e-07')
    """
    if number and not 1e-3 <= abs(number) < 1e5:
        return f"{number:.3g}"
    return f"{number:,.4g}" if abs(number) < 1e3 else f"{number:,.0f}"


def _attention(record: Record) -> list[Record]:
    return [site for site in record["sites"] if site["kind"] in ATTENTION]


def _counts(record: Record) -> tuple[tuple[str, str], ...]:
    attention = _attention(record)
    others = [site for site in record["sites"] if site["kind"] not in ATTENTION]
    products = sum(len(site["heads"]) for site in attention)
    matrices = sum(len(site["heads"]) for site in others)
    proved = sum(site["certified"] in {"here", "release"} for site in attention)
    failed = sum(head.get("failure") is not None for site in record["sites"] for head in site["heads"])
    counts: list[tuple[str, str]] = []
    if attention:
        counts.append((f"{products:,}", _noun(products, "attention product")))
        counts.append((f"{proved:,} of {len(attention):,}", "attention sites certified"))
    if others or not attention:
        counts.append((f"{matrices:,}", "other matrices" if attention else _noun(matrices, "matrix", "matrices")))
    unread = len(record["unread"])
    counts.append((f"{unread:,}", _noun(unread, "tensor") + " unread"))
    if failed:
        counts.append((f"{failed:,}", "without a spectrum"))
    return tuple(counts)


def _noun(count: int, one: str, many: str | None = None) -> str:
    return one if count == 1 else (many or f"{one}s")


def _warnings(record: Record) -> tuple[str, ...]:
    found = []
    if record.get("complete") is False:
        found.append("The scan was interrupted: this page shows what was read until then. Continue it with --resume.")
    attention = _attention(record)
    unproved = sum(site["certified"] == "no" for site in attention)
    if unproved:
        found.append(
            f"{unproved:,} of {len(attention):,} attention sites are not certified: their layout is taken on trust. "
            "Prove it on the live model with rankwise.find(model).certify()."
        )
    return tuple(found)


def _findings(record: Record) -> tuple[Finding, ...]:
    titles = {name: entry.get("title", name) for name, entry in record["measures"].items()}
    found = []
    for entry, position in zip(record["findings"], finding_places(record), strict=True):
        name, head = str(entry.get("site")), entry.get("head")
        target = "" if position is None else f"site-{position[0]}-head-{position[1] or 0}"
        evidence = [
            (printable(titles.get(key) or EVIDENCE.get(key) or str(key).replace("_", " ")), number)
            for key, value in (entry.get("evidence") or {}).items()
            if (number := finite(value)) is not None
        ]
        found.append(
            Finding(
                printable(entry.get("kind", "")),
                place=printable(name) + ("" if head is None else f" · head {printable(head)}"),
                text=finding_text(entry),
                evidence=tuple((key, quantity(number)) for key, number in evidence),
                target=target,
            )
        )
    return tuple(found)


def _matrix_changes(record: Record) -> tuple[MatrixChange, ...]:
    positions = {str(site["name"]): position for position, site in enumerate(record["sites"])}

    def product(name: str) -> tuple[str, str, str]:
        position = positions.get(name)
        heads = [] if position is None else record["sites"][position]["heads"]
        found = [one[0] for head in heads if (one := pair(head["measures"].get("energy_rank"))) is not None]
        ranks = f"{min(found):.0f} to {max(found):.0f}" if found else ""
        return printable(name, 160), "" if position is None else f"site-{position}-head-0", ranks

    return tuple(
        MatrixChange(
            printable(entry.get("parameter", "?"), 160),
            shape=_shape(entry),
            relative="unknown" if (relative := finite(entry.get("relative"))) is None else quantity(relative),
            ranks={
                printable(share): "more than looked for" if rank is None else str(rank)
                for share, rank in (entry.get("ranks") or {}).items()
            },
            products=tuple(product(str(name)) for name in entry.get("sites") or ()),
            reason=printable(entry.get("reason") or ""),
        )
        for entry in record.get("matrices") or ()
    )


def _shape(entry: Record) -> str:
    return printable(" x ".join(str(size) for size in entry.get("shape") or ()) or "?")


def _unread(record: Record) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    grouped: dict[str, list[tuple[str, str]]] = {}
    for entry in record["unread"]:
        reason = printable(entry.get("reason") or "no reason given", 400)
        grouped.setdefault(reason, []).append((printable(entry.get("parameter", "?"), 160), _shape(entry)))
    return tuple((reason, tuple(grouped[reason])) for reason in sorted(grouped, key=lambda one: -len(grouped[one])))


def _methods(record: Record) -> Counter[str]:
    return Counter(str(head.get("method") or "none") for site in record["sites"] for head in site["heads"])


def _explained(found: Counter[str], words: Mapping[str, str]) -> tuple[tuple[str, int, str], ...]:
    return tuple((printable(name), count, words.get(name, "")) for name, count in found.most_common())


def _listed(entries: Record) -> tuple[tuple[str, str], ...]:
    return tuple((printable(key), _text(value)) for key, value in entries.items() if value is not None)


def _text(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return printable(", ".join(str(one) for one in value), 400)
    return printable(value, 400)
