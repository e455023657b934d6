"""What a heatmap can be coloured by: the measures of a scan, and what follows from its balances and edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rankwise.report.packing import finite
from rankwise.report.record import Record
from rankwise.text import printable

SHAPE = "Shape of the spectrum"
SIZE = "Size"
BALANCE = "Balance of the factors"
RANDOM = "Against random factors"
BASE = "Against the base"

Pair = tuple[float, float | None]
"""A value with its error (or, for a null, its spread) where that is known."""


@dataclass(frozen=True)
class Quantity:
    """One number of every head, with its null for random factors.

    Arguments:
        key: its name.
        title, formula, meaning: how the page explains it.
        family: the group of the selector it stands in.
        scales: whether its null has to be multiplied by the head's `null_scale`.
        of: from a site and a head to the number.
        null: from a site to its null, at unit scale.
    """

    key: str
    title: str = field(kw_only=True)
    formula: str = field(kw_only=True)
    meaning: str = field(kw_only=True)
    family: str = field(kw_only=True)
    scales: bool = field(kw_only=True, default=False)
    of: Callable[[Record, Record], Pair | None] = field(kw_only=True, repr=False)
    null: Callable[[Record], Pair | None] = field(kw_only=True, repr=False)


def quantities(records: Sequence[Record]) -> tuple[Quantity, ...]:
    """Every quantity that at least one head of the records has, the share of the effective rank first."""
    entries = {name: entry for record in records for name, entry in record["measures"].items()}
    found = [_measure(name, entry) for name, entry in entries.items()]
    shares = [_share(found[index]) for index, name in enumerate(entries) if name == "effective_rank"]
    candidates = (*shares, *found, *DERIVED)
    heads = [(site, head) for record in records for site in record["sites"] for head in site["heads"]]
    return tuple(one for one in candidates if any(one.of(site, head) is not None for site, head in heads))


def pair(value: object) -> Pair | None:
    """A `[value, error]` of a record, or a bare value; None where there is no finite value."""
    number, error = (value[0], value[1]) if isinstance(value, list | tuple) and len(value) == 2 else (value, None)
    number = finite(number)
    return None if number is None else (number, finite(error))


def spectrum_length(site: Record) -> int:
    """The number of singular values of each matrix of a site."""
    return min((int(width) for width in site["widths"]), default=0)


def _measure(name: str, entry: Record) -> Quantity:
    scales = bool(entry.get("scales", name.endswith("_norm")))
    return Quantity(
        printable(name),
        title=printable(entry.get("title") or name),
        formula=printable(entry.get("formula") or "", limit=300),
        meaning=printable(entry.get("meaning") or "", limit=300),
        family=SIZE if scales else SHAPE,
        scales=scales,
        of=lambda _, head: pair(head["measures"].get(name)),
        null=lambda site: pair(((site.get("null") or {}).get("measures") or {}).get(name)),
    )


def _share(count: Quantity) -> Quantity:
    def divided(found: Pair | None, site: Record) -> Pair | None:
        length = spectrum_length(site)
        if found is None or not length:
            return None
        return found[0] / length, None if found[1] is None else found[1] / length

    return Quantity(
        f"{count.key}_share",
        title=f"{count.title}, as a share",
        formula=f"{count.formula}; over the number of values",
        meaning=f"{count.meaning} 1 is the flattest spectrum that there is.",
        family=SHAPE,
        of=lambda site, head: divided(count.of(site, head), site),
        null=lambda site: divided(count.null(site), site),
    )


def _relative_gap(_: Record, head: Record) -> Pair | None:
    balance = head.get("balance") or {}
    relative, half_sum, error = (finite(balance.get(key)) for key in ("relative", "half_sum", "error"))
    return None if relative is None else (relative, error / half_sum if error is not None and half_sum else None)


def _relative_change(_: Record, head: Record) -> Pair | None:
    relative = finite((head.get("change") or {}).get("relative"))
    norm = pair(head["measures"].get("frobenius_norm"))
    if relative is None:
        return None
    # The base's norm is a sum of squares: what is uncertain is the change's.
    return relative, relative * norm[1] / norm[0] if norm and norm[1] is not None and norm[0] > 0 else None


def _overlap(side: str) -> Callable[[Record, Record], Pair | None]:
    def of(_: Record, head: Record) -> Pair | None:
        change = head.get("change") or {}
        overlap = finite(change.get(side))
        return None if overlap is None else (overlap, finite(change.get("error")))

    return of


def _chance(side: str) -> Callable[[Record], Pair | None]:
    return lambda site: next((pair((head.get("change") or {}).get(f"{side}_chance")) for head in site["heads"]), None)


def _over_edge(site: Record, head: Record) -> Pair | None:
    values, errors = head.get("values") or [None], head.get("errors") or [None]
    largest, scale, edge = (
        finite(number) for number in (values[0], head.get("null_scale"), (site.get("null") or {}).get("edge"))
    )
    if largest is None or not scale or not edge:
        return None
    error = finite(errors[0])
    return largest / (scale * edge), None if error is None else error / (scale * edge)


DERIVED = (
    Quantity(
        "over_edge",
        title="largest value / random edge",
        formula="s_1 / (edge x null scale)",
        meaning="Above 1 a direction sticks out that random factors show once in a thousand.",
        family=RANDOM,
        of=_over_edge,
        null=lambda site: (1.0, None) if finite((site.get("null") or {}).get("edge")) else None,
    ),
    Quantity(
        "relative_gap",
        title="relative gap",
        formula="1 - nuclear norm / half-sum, half-sum = (|A|^2 + |B|^2) / 2",
        meaning="Zero when the factors are balanced: weight decay then charges the nuclear norm, exactly.",
        family=BALANCE,
        of=_relative_gap,
        null=lambda site: pair((site.get("null") or {}).get("relative_gap")),
    ),
    Quantity(
        "pair_relative_gap",
        title="relative gap, rotary pairs",
        formula="1 - (sum of the pairs' nuclear norms) / half-sum",
        meaning="The same for rotary heads, whose factors are balanced within each frequency pair, not across them.",
        family=BALANCE,
        of=lambda _, head: pair((head.get("pairs") or {}).get("relative")),
        null=lambda _: None,
    ),
    Quantity(
        "imbalance",
        title="relative imbalance",
        formula="|A^T A - B B^T|_F over the root mean square of the two Grams' norms",
        meaning="How differently the two factors weigh their inner directions.",
        family=BALANCE,
        of=lambda _, head: pair((head.get("balance") or {}).get("imbalance")),
        null=lambda site: pair((site.get("null") or {}).get("imbalance")),
    ),
    Quantity(
        "relative_change",
        title="change / base",
        formula="|change|_F / |base|_F",
        meaning="How far the product has moved, in units of its size at the base.",
        family=BASE,
        of=_relative_change,
        null=lambda _: None,
    ),
    *(
        Quantity(
            f"{side}_overlap",
            title=f"overlap with the base, {side}",
            formula="|U^T V|_F^2 / k, U and V the leading k directions of the change and of the base",
            meaning="1 when the change stays within the base's leading directions; random is what chance would give.",
            family=BASE,
            of=_overlap(side),
            null=_chance(side),
        )
        for side in ("left", "right")
    ),
)
