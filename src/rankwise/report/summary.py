"""What a scan found, in words: the headline, the findings, what was not read, and how the numbers came about."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rankwise.report.packing import finite
from rankwise.report.record import ATTENTION, Record, finding_places, finding_text, step_of
from rankwise.text import printable

FINDINGS = {
    "collapsed": "far fewer directions than random factors of that shape",
    "dead": "so small that the network barely feels it",
    "spiked": "a direction far above the random edge",
    "unbalanced": "weight decay does not act as the nuclear norm here",
    "random": "a spectrum like that of random factors",
    "failed": "no spectrum could be computed",
}
CERTIFICATES = {
    "here": "proved on this very model: its logits were reproduced, or moves that must not change it did not",
    "release": "this layout, with these configuration fields, passed in the tests of this release",
    "no": "read by its layout alone; check it with sites.certify() on the live model",
}
METHODS = {
    "gram32": "eigenvalues of the factors' small Gram matrices, accumulated in float32",
    "gram64": "eigenvalues of the factors' small Gram matrices, accumulated in float64",
    "qr": "QR of the factors in float64, and the singular values of the small core",
    "dense": "the product multiplied out in float64, and its singular values",
    "precise": "pivoted QR and one-sided Jacobi: every value to high relative accuracy",
}


@dataclass(frozen=True)
class Finding:
    """One thing that stands out, with its evidence and the head that it is about (`target` is empty if none)."""

    kind: str
    place: str = field(kw_only=True)
    text: str = field(kw_only=True)
    evidence: tuple[tuple[str, str], ...] = field(kw_only=True)
    target: str = field(kw_only=True)


@dataclass(frozen=True)
class MatrixChange:
    """How far a single matrix moved, and the LoRA rank that keeps each share of its change's energy."""

    name: str
    shape: str = field(kw_only=True)
    relative: str = field(kw_only=True)
    ranks: Mapping[str, str] = field(kw_only=True)
    reason: str = field(kw_only=True)


@dataclass(frozen=True)
class Summary:
    """The words of one scan; every text in it is safe to show once HTML-escaped.

    Arguments:
        title, source, base, created, version: what was scanned, and by what.
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
    def finding_counts(self) -> tuple[tuple[str, int, str], ...]:
        """The findings by kind, with what the kind means."""
        found = Counter(one.kind for one in self.findings)
        return tuple((kind, count, FINDINGS.get(kind, "")) for kind, count in found.items())


def summarize(record: Record, position: int = 0) -> Summary:
    """The words of one record; `position` is its place in a series."""
    base = record.get("base")
    return Summary(
        printable((record.get("model") or {}).get("type") or _last_part(record.get("source", "")) or "model", 60),
        source=printable(record.get("source", ""), 200),
        base=None if base is None else printable(base, 200),
        created=printable(record.get("created", "")),
        version=printable(record.get("rankwise", "")),
        step=step_of(record, position),
        counts=_counts(record),
        warnings=_warnings(record),
        findings=_findings(record),
        unread=_unread(record),
        ranks=tuple(_matrix_change(entry) for entry in record.get("matrices") or ()),
        methods=_explained(_methods(record), METHODS),
        certificates=_explained(Counter(str(site["certified"]) for site in _attention(record)), CERTIFICATES),
        settings=_listed(record["settings"]),
        model=_listed(record["model"].get("config") or {}),
        notes=tuple(printable(note, 400) for note in record.get("notes") or ()),
    )


def _last_part(source: object) -> str:
    """The last folder or file of a path or address."""
    return re.split(r"[/\\]", str(source).rstrip("/\\"))[-1]


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
            f"{unproved:,} of {len(attention):,} attention sites are not certified: their layout is taken on trust."
        )
    return tuple(found)


def _findings(record: Record) -> tuple[Finding, ...]:
    titles = {name: entry.get("title", name) for name, entry in record["measures"].items()}
    found = []
    for entry, position in zip(record["findings"], finding_places(record), strict=True):
        name, head = str(entry.get("site")), entry.get("head")
        target = "" if position is None else f"site-{position[0]}-head-{position[1] or 0}"
        evidence = [
            (printable(titles.get(key, str(key).replace("_", " "))), number)
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


def _matrix_change(entry: Record) -> MatrixChange:
    relative = finite(entry.get("relative"))
    ranks = {
        printable(share): "more than looked for" if rank is None else str(rank)
        for share, rank in (entry.get("ranks") or {}).items()
    }
    return MatrixChange(
        printable(entry.get("parameter", "?"), 160),
        shape=_shape(entry),
        relative="unknown" if relative is None else quantity(relative),
        ranks=ranks,
        reason=printable(entry.get("reason") or ""),
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
