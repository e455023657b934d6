"""From one site to its record: the spectrum of every head, its measures, its balance, and the null beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankwise.errors import RankwiseError
from rankwise.numbers import bound, bounds, number, numbers
from rankwise.product.balance import Balance, balance
from rankwise.product.catalogue import MEASURES, Measured
from rankwise.product.groups import shared_axis
from rankwise.product.leading import outline
from rankwise.product.null import NullModel, NullValue, ScaledNull, null_model
from rankwise.product.pairs import pair_balance
from rankwise.product.product import Product
from rankwise.product.spectrum import Spectrum
from rankwise.product.verdicts import random_distance, rank_share, spikes
from rankwise.scans.settings import Settings
from rankwise.scans.wide import Wide
from rankwise.sites.record import describe
from rankwise.sites.site import Site
from rankwise.sites.source import Source

LOW, HIGH = 0.01, 0.99


def assess(site: Site, source: Source, settings: Settings) -> dict[str, Any]:
    """The record of a site, as docs/scan-format.md describes it."""
    product = stored(site, source) if settings.weights == "stored" else site.effective(Wide(source))
    product = product.detach()
    if settings.device is not None:
        product = product.to(settings.device)
    record = describe(site, product.widths)
    if site.kind not in settings.spectra:
        return record | {"heads": _outlined(product, settings), "null": None, "group": None}
    spectrum = product.spectrum(settings.method, settings.tolerance)
    null = null_model(product.widths, draws=settings.draws)
    heads = head_records(spectrum, settings.measures)
    held_against(heads, spectrum, null.scaled(product))
    balanced = product.depth == 2
    for position, entry in enumerate(_balances(product) if balanced else [None] * len(heads)):
        heads[position]["balance"] = entry
    for position, entry in enumerate(_pairs(site, product) if balanced else [None] * len(heads)):
        heads[position]["pairs"] = entry
    return record | {"heads": heads, "group": _groups(product), "null": null_record(null, settings.measures)}


def stored(site: Site, source: Source) -> Product:
    """The product of the stored weights, times the number that an adapter is applied with."""
    return site.product(source) if site.scaling == 1.0 else site.product(Wide(source)) * site.scaling


def head_records(spectrum: Spectrum, names: Sequence[str]) -> list[dict[str, Any]]:
    """One entry for each matrix of a stack: its singular values and measures, each with its error."""
    count = spectrum.values[..., 0].numel()
    values = spectrum.values.reshape(count, -1).cpu()
    errors = spectrum.error.reshape(count, -1).cpu()
    methods = [spectrum.method] * count if isinstance(spectrum.method, str) else list(spectrum.method)
    measured = {name: MEASURES[name].of(spectrum) for name in names}
    heads = []
    for head in range(count):
        heads.append(
            {
                "head": head,
                "method": methods[head],
                "failure": spectrum.failures.get(head),
                "values": numbers(values[head]),
                "errors": bounds(errors[head]),
                "measures": {name: _pair(entry, head) for name, entry in measured.items()},
            }
        )
    return heads


def held_against(heads: list[dict[str, Any]], spectrum: Spectrum, null: ScaledNull) -> None:
    """Put beside every head what the null model says of it."""
    columns = {
        "spikes": spikes(spectrum, null),
        "rank_share": rank_share(spectrum, null),
        "random_distance": random_distance(spectrum, null),
    }
    rows = {name: numbers(column.flatten().cpu()) for name, column in columns.items()}
    scales = numbers(null.scale.flatten().cpu())
    for position, head in enumerate(heads):
        head["null_scale"] = scales[position]
        head["verdicts"] = {name: row[position] for name, row in rows.items()}


def null_record(null: NullModel, names: Sequence[str]) -> dict[str, Any]:
    """What random factors of the same widths give, at unit scale."""
    junction = len(null.widths) > 2
    return {
        "values": numbers(null.mean),
        "low": numbers(null.quantile(LOW)),
        "high": numbers(null.quantile(HIGH)),
        "edge": number(null.edge),
        "relative_gap": _null(null.relative_gap()) if junction else None,
        "imbalance": _null(null.relative_imbalance()) if junction else None,
        "measures": {name: _null(null.value(name)) for name in names},
        "draws": null.draws,
    }


def _outlined(product: Product, settings: Settings) -> list[dict[str, Any]]:
    """The heads of a site without a spectrum: its norms only, of a product of several factors the Frobenius norm."""
    found = outline(product) if product.depth == 1 else {"frobenius_norm": MEASURES["frobenius_norm"].of(product)}
    finite = found["frobenius_norm"].value.isfinite().flatten().tolist()
    leading = found.get("operator_norm", found["frobenius_norm"]).method
    methods = [leading] * product.count if isinstance(leading, str) else list(leading)
    measured = {name: entry for name, entry in found.items() if name in settings.measures}
    return [
        {
            "head": head,
            "method": methods[head],
            "failure": None if finite[head] else "the matrix holds NaN or Inf",
            "measures": {name: _pair(entry, head) for name, entry in measured.items()},
            "null_scale": None,
            "verdicts": None,
            "balance": None,
            "pairs": None,
        }
        for head in range(product.count)
    ]


def _pair(entry: Measured, head: int) -> list[float | None]:
    return [number(entry.value.flatten()[head].item()), bound(entry.error.flatten()[head].item())]


def _null(value: NullValue) -> list[float | None]:
    return [number(value.mean), number(value.spread)]


def _balances(product: Product) -> list[dict[str, Any] | None]:
    try:
        return _balance_entries(balance(product))
    except RankwiseError:
        return [None] * product.count


def _balance_entries(found: Balance) -> list[dict[str, Any] | None]:
    columns = {
        "half_sum": found.half_sum,
        "nuclear": found.nuclear,
        "gap": found.gap,
        "relative": found.relative,
        "imbalance": found.relative_imbalance,
    }
    rows = {name: numbers(column.flatten().cpu()) for name, column in columns.items()}
    errors = bounds(found.error.flatten().cpu())
    return [{name: row[head] for name, row in rows.items()} | {"error": errors[head]} for head in range(len(errors))]


def _groups(product: Product) -> list[dict[str, Any]] | None:
    """For heads that share keys or values: the balance of each group's concatenation, for which the laws hold."""
    axis = shared_axis(product)
    if axis is None:
        return None
    found = balance(product, group=axis)
    entries = _balance_entries(found)
    return [dict(entry or {}) | {"null": _null(found.null)} for entry in entries]


def _pairs(site: Site, product: Product) -> list[dict[str, Any] | None]:
    """For rotary heads: the sum over frequency pairs, which decay charges instead of the nuclear norm."""
    facts = site.attention.rotary if site.attention is not None and site.kind == "qk" else None
    if facts is None:
        return [None] * product.count
    found = pair_balance(product, facts.index())
    columns = {"half_sum": found.half_sum, "pair_sum": found.pair_sum, "gap": found.gap, "relative": found.relative}
    rows = {name: numbers(column.flatten().cpu()) for name, column in columns.items()}
    return [{name: row[head] for name, row in rows.items()} for head in range(product.count)]
