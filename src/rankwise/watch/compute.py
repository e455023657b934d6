"""From copies of parameters to the rows and spectra of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from rankwise.errors import RankwiseError, UserError
from rankwise.numbers import number
from rankwise.product.balance import Balance, balance
from rankwise.product.bucket import spectra
from rankwise.product.catalogue import measure
from rankwise.product.groups import shared_axis
from rankwise.product.norms import frobenius
from rankwise.product.pairs import pair_balance
from rankwise.product.product import Product
from rankwise.product.spectrum import Spectrum
from rankwise.product.sums import change
from rankwise.product.tangent import tangent
from rankwise.sites.checkpoints.checkpoint import Checkpoint
from rankwise.sites.site import Site
from rankwise.watch.capture import Copies
from rankwise.watch.decay import Implied
from rankwise.watch.rows import Row

Found = Product | str
"""A product, or why there is none."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is computed at every snapshot.

    Arguments:
        sites: the products, in the order of the rows.
        measures: the names of their measures.
        tolerance: the error of a singular value that will do, as a share of the largest.
        start: where the parameters lie that changes are measured from, or None.
        names: under which name `start` has a parameter, where that differs.
        keep: whether spectra are kept.
        start_norms: the Frobenius norms of the starts, once they are known.
    """

    sites: tuple[Site, ...]
    measures: tuple[str, ...]
    tolerance: float
    start: Checkpoint | None
    names: Mapping[str, str] = field(default_factory=dict)
    keep: Literal["spectra", "measures"]
    start_norms: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """The numbers of one step: its rows, and the spectra to keep."""

    rows: list[Row]
    spectra: dict[str, Tensor] | None


def compute(
    step: int,
    plan: Plan,
    copies: Copies,
    *,
    gradients: Copies | None = None,
    implied: Mapping[str, Implied] | None = None,
) -> Snapshot:
    """All rows of a snapshot: products, groups, changes since the start, gradients.

    Arguments:
        step: its number.
        plan: what to compute.
        copies: the parameters.
        gradients: their gradients, where those are watched.
        implied: what the optimizer implies for each site.
    """
    products = [(site, _stored(site, copies)) for site in plan.sites]
    rows, kept, found = _measured(step, "product", products, plan)
    for site, product in products:
        if isinstance(product, Product):
            _add_balance(site, product, found[site.name], rows[site.name])
            _add_implied((implied or {}).get(site.name), product, rows[site.name])
    ordered = [row for site in plan.sites for row in rows[site.name]]
    ordered += [row for site, product in products for row in _groups(step, site, product, implied or {})]
    if plan.start is not None:
        changes = [(site, _change(site, product, plan)) for site, product in products]
        more, spectra_of_changes, _ = _measured(step, "change", changes, plan)
        ordered += [row for site in plan.sites for row in more[site.name]]
        kept |= spectra_of_changes
    if gradients is not None:
        moves = [(site, _gradient(site, product, gradients)) for site, product in products]
        more, spectra_of_moves, _ = _measured(step, "gradient", moves, plan)
        ordered += [row for site in plan.sites for row in more[site.name]]
        kept |= spectra_of_moves
    return Snapshot(ordered, kept if plan.keep == "spectra" else None)


def mean_of(rows: Sequence[Row], name: str, *, of: str = "product") -> float | None:
    """The mean of a column over the products or changes of a snapshot, of the numbers as they are written."""
    found = [number(row[name]) for row in rows if row["of"] == of and row.get(name) is not None]
    values = [value for value in found if value is not None]
    return sum(values) / len(values) if values else None


def _stored(site: Site, copies: Copies) -> Found:
    """The product of a site as the network applies it but for biases and gains, which have no part in decay."""
    reason = next((copies.missing[name] for name in site.parameters if name in copies.missing), None)
    if reason is not None:
        return reason
    try:
        product = site.product(copies.tensors)
        # An adapter's number would be rounded to the type of its factors.
        return product if site.scaling == 1.0 else product.to(torch.float64) * site.scaling
    except UserError as error:
        return str(error)


def _change(site: Site, product: Found, plan: Plan) -> Found:
    if isinstance(product, str):
        return product
    assert plan.start is not None
    try:
        start = site.product(_Renamed(plan.start, plan.names)).to(product.device)
        start = start if site.scaling == 1.0 else start.to(torch.float64) * site.scaling
        if site.name not in plan.start_norms:
            plan.start_norms[site.name] = frobenius(start).value
        return change(product, start, start_norm=plan.start_norms[site.name])
    except UserError as error:
        return f"no start to compare with: {error}"


def _gradient(site: Site, product: Found, gradients: Copies) -> Found:
    if isinstance(product, str):
        return product
    directions = _stored(site, gradients)
    if isinstance(directions, str):
        return directions
    return tangent(product, [each.to(own.dtype) for each, own in zip(directions.factors, product.factors, strict=True)])


def _measured(
    step: int, of: str, found: Sequence[tuple[Site, Found]], plan: Plan
) -> tuple[dict[str, list[Row]], dict[str, Tensor], dict[str, Spectrum]]:
    """The rows of each site, its spectrum as it is kept, and the spectrum itself."""
    sound = [(site, product) for site, product in found if isinstance(product, Product)]
    computed = spectra([product for _, product in sound], tolerance=plan.tolerance)
    rows: dict[str, list[Row]] = {}
    kept: dict[str, Tensor] = {}
    for site, product in found:
        if isinstance(product, str):
            rows[site.name] = [_fact(step, of, site, head) | {"failure": product} for head in range(site.heads)]
    for width in dict.fromkeys(spectrum.values.shape[-1] for spectrum in computed):
        # Measures of many heads at once cost hardly more than those of one.
        alike = [(site, one) for (site, _), one in zip(sound, computed, strict=True) if one.values.shape[-1] == width]
        joined = Spectrum(
            torch.cat([one.values.reshape(-1, width) for _, one in alike]),
            method="joined",
            error=torch.cat([one.error.reshape(-1, width) for _, one in alike]),
        )
        columns = list(_columns(joined, plan.measures))
        first = 0
        for site, one in alike:
            rows[site.name] = []
            for head in range(one.count):
                row = _fact(step, of, site, head) | {"failure": one.failures.get(head)}
                row["method"] = one.method if isinstance(one.method, str) else one.method[head]
                row |= {name: values[first + head] for name, values in columns}
                rows[site.name].append(row)
            first += one.count
            if plan.keep == "spectra":
                kept |= _shortened(f"{of}/{site.name}", f"{of} errors/{site.name}", one)
    return rows, kept, {site.name: one for (site, _), one in zip(sound, computed, strict=True)}


def _columns(spectrum: Spectrum, measures: Sequence[str]) -> Iterator[tuple[str, list[float]]]:
    for name in measures:
        found = measure(name, spectrum)
        yield name, found.value.tolist()
        yield f"{name}_error", found.error.tolist()


def _shortened(name: str, error_name: str, spectrum: Spectrum) -> dict[str, Tensor]:
    """Values in float32 and bounds in bfloat16, which also hold for what the shortening changed."""
    values = spectrum.values.reshape(-1, spectrum.values.shape[-1])
    short = values.float()
    error = spectrum.error.reshape(values.shape) + (values - short.double()).abs().nan_to_num(nan=torch.inf)
    return {name: short.cpu().contiguous(), error_name: (error * (1 + 2.0**-7)).to(torch.bfloat16).cpu().contiguous()}


def _add_balance(site: Site, product: Product, spectrum: Spectrum, rows: list[Row]) -> None:
    if product.depth != 2:
        return
    try:
        _fill(rows, _balance_columns(balance(product, spectrum=spectrum)))
        rotary = site.attention.rotary if site.attention is not None and site.kind == "qk" else None
        if rotary is not None:
            _fill(rows, {"pair_sum": pair_balance(product, rotary.index()).pair_sum})
    except RankwiseError as error:
        for row in rows:
            row["failure"] = row["failure"] or str(error)


def _add_implied(implied: Implied | None, product: Product, rows: list[Row]) -> None:
    if implied is None:
        return
    for row in rows:
        row["decay"] = implied.decay
    if implied.nuclear_coefficient is not None:
        _fill(rows, {"nuclear_coefficient": implied.nuclear_coefficient.expand(product.batch_shape)})


def _groups(step: int, site: Site, product: Found, implied: Mapping[str, Implied]) -> Iterator[Row]:
    """For heads that share keys or values: the balance of each group's concatenation, for which the laws hold."""
    axis = None if isinstance(product, str) else shared_axis(product)
    if axis is None or isinstance(product, str):
        return
    found = balance(product, group=axis)
    rows = [_fact(step, "group", site, group) | {"failure": None} for group in range(found.gap.numel())]
    _fill(rows, _balance_columns(found))
    for row in rows:
        row["decay"] = implied[site.name].decay if site.name in implied else None
    yield from rows


def _balance_columns(found: Balance) -> dict[str, Tensor]:
    return {
        "half_sum": found.half_sum,
        "gap": found.gap,
        "gap_error": found.error,
        "imbalance": found.relative_imbalance,
        "imbalance_norm": found.imbalance_norm,
    }


def _fill(rows: list[Row], columns: Mapping[str, Tensor]) -> None:
    for name, column in columns.items():
        for row, value in zip(rows, column.flatten().tolist(), strict=True):
            row[name] = value


def _fact(step: int, of: str, site: Site, head: int) -> Row:
    return {"step": step, "of": of, "site": site.name, "kind": site.kind, "layer": site.layer, "head": head}


@dataclass(frozen=True)
class _Renamed:
    """A source that has some tensors under other names."""

    source: Any
    names: Mapping[str, str]

    def __getitem__(self, name: str) -> Tensor:
        return self.source[self.names.get(name, name)]

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> Tensor:
        """Rows of a tensor, as `Site.product` asks for them."""
        return self.source.read(self.names.get(name, name), index)
