"""Predictions laid over a recorded run, with scores: imbalance under decay, the bound of the gap, moments of escape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.side_by_side import SideBySide

if TYPE_CHECKING:
    from jaxtyping import Float

# A product that grew by less than this since its start did not begin small.
SMALL = 100.0
# Two snapshots this far apart in size, neither at the start nor near the end, give the rate of growth.
APART = 3.0

Key = tuple[str, str, int]


class RecordedRun(Protocol):
    """What is read of a run: what `rw.open_run` returns, in the columns of docs/run-format.md."""

    @property
    def heading(self) -> Mapping[str, Any]: ...

    @property
    def snapshots(self) -> Sequence[Any]: ...

    def rows(self) -> Iterable[Mapping[str, Any]]: ...

    def spectra(self, step: int) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class OverlaidProduct:
    """One head of a product, or a group of heads, with its predictions.

    Arguments:
        site: where it lives.
        head: its number; of the group where heads share a factor.
        of: "product" or "group".
        steps: of the snapshots.
        imbalance: `|D|_F` at the first snapshot times `exp(-2 sum lr lam)`, beside the measured one.
        gap: half-sum minus nuclear norm, measured.
        gap_bound: `sqrt(r) / 2` times the predicted imbalance, which the gap stays below where the law holds.
        escape: the step at which its largest singular value reached half of its last, from the exponential growth
            before it was a tenth of that, beside the measured step; None where the product did not begin small.
    """

    site: str
    head: int = field(kw_only=True)
    of: str = field(kw_only=True)
    steps: Float[Tensor, " n"] = field(kw_only=True, repr=False)
    imbalance: SideBySide = field(kw_only=True)
    gap: Float[Tensor, " n"] = field(kw_only=True, repr=False)
    gap_bound: Float[Tensor, " n"] = field(kw_only=True, repr=False)
    escape: SideBySide | None = field(kw_only=True)

    @property
    def factor(self) -> float:
        """Measured over predicted imbalance at the last snapshot: 1 where decay alone explains it."""
        return float(self.imbalance.simulated[-1] / self.imbalance.predicted[-1])

    @property
    def within(self) -> float:
        """The share of snapshots at which the gap is below its predicted bound."""
        return float((self.gap <= self.gap_bound * (1 + 1e-6)).double().mean())


@dataclass(frozen=True)
class Overlay:
    """A run with what theory says of it.

    Arguments:
        products: with their predictions.
        left_out: where the theory does not apply, and why, by the name of the site.
        caution: what the scores are worth under the optimizer of the run.
    """

    products: tuple[OverlaidProduct, ...]
    left_out: Mapping[str, str] = field(kw_only=True)
    caution: str = field(kw_only=True)

    @property
    def score(self) -> float:
        """The median over products of `|log(measured / predicted)|` of the last imbalance; 0 is perfect."""
        misses = sorted(abs(math.log(one.factor)) for one in self.products if one.factor > 0)
        return misses[len(misses) // 2] if misses else math.nan

    def table(self) -> Table:
        """A row for each product; the caption says what does not apply, and why."""
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left")
        table.add_column("product")
        for name in ("head", "imbalance", "predicted", "factor", "gap within", "escape", "predicted"):
            table.add_column(name, justify="right")
        for one in self.products:
            moments = ("-", "-")
            if one.escape is not None:
                moments = f"{one.escape.simulated.item():.0f}", f"{one.escape.predicted.item():.0f}"
            table.add_row(
                one.site,
                f"{one.of} {one.head}" if one.of == "group" else str(one.head),
                f"{one.imbalance.simulated[-1].item():.3g}",
                f"{one.imbalance.predicted[-1].item():.3g}",
                f"{one.factor:.3g}",
                f"{one.within:.0%}",
                *moments,
            )
        notes = [self.caution, *(f"left out {name}: {reason}" for name, reason in self.left_out.items())]
        table.caption = Text("\n".join(note for note in notes if note))
        return table

    def __rich__(self) -> Table:
        return self.table()


def overlay(run: RecordedRun, *, optimizer: str | None = None) -> Overlay:
    """Lay the lab's predictions over a run that `rw.Monitor(..., optimizer=...)` recorded, and score them.

    Arguments:
        run: what `rw.open_run` returns.
        optimizer: the name of the class that trained it, such as "SGD" or "AdamW", where the run does not say.

    Returns:
        Every product and group for which a law was stated; all others with the reason. Under adaptive optimizers the
        numbers are a comparison and no theorem, and moments of escape are not given.
    """
    name = optimizer or str(run.heading.get("optimizer") or "")
    sites = {site["name"]: site for site in run.heading["sites"]}
    series: dict[Key, list[Mapping[str, Any]]] = {}
    for row in run.rows():
        if row["of"] in ("product", "group"):
            series.setdefault((row["of"], row["site"], row["head"]), []).append(row)
    if not series:
        raise UserError("the run holds no snapshots of products: record some before laying predictions over them")
    largest = {} if _adaptive(name) else _largest(run)
    products, left_out = [], {}
    grouped = {site for of, site, _ in series if of == "group"}
    for (of, site, head), rows in series.items():
        reason = _unfit(rows, sites[site])
        if reason:
            if not (of == "product" and site in grouped):
                left_out[site] = reason
            continue
        products.append(
            _laid(of, site, head, rows, sites[site], largest.get((site, head)) if of == "product" else None)
        )
    return Overlay(tuple(products), left_out=left_out, caution=_caution(name))


def _laid(
    of: str, site: str, head: int, rows: Sequence[Mapping[str, Any]], about: Mapping[str, Any], path: Any
) -> OverlaidProduct:
    usable = [row for row in rows if None not in (row["imbalance_norm"], row["gap"], row["decay"])]
    measured, gap, decay = (
        torch.tensor([float(row[name]) for row in usable], dtype=torch.float64)
        for name in ("imbalance_norm", "gap", "decay")
    )
    predicted = measured[0] * (-2 * (decay - decay[0])).exp()
    return OverlaidProduct(
        site,
        head=head,
        of=of,
        steps=torch.tensor([row["step"] for row in usable], dtype=torch.float64),
        imbalance=SideBySide(predicted, simulated=measured),
        gap=gap,
        gap_bound=math.sqrt(about["widths"][1]) / 2 * predicted,
        escape=None if path is None else _escape(*path),
    )


def _unfit(rows: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> str:
    """Why no law was stated for a product, or nothing."""
    if about.get("rotary") and about["kind"] == "qk":
        return "rotary queries and keys: the law holds for each frequency, not for the head"
    if len(about["widths"]) != 3:
        return f"a product of {len(about['widths']) - 1} factors"
    if "decay" not in rows[0]:
        return "the run does not know its optimizer: rw.Monitor(..., optimizer=optimizer)"
    if all(row["decay"] is None for row in rows):
        return "its two factors decay differently, or are not trained"
    if all(row.get("imbalance_predicted") is None for row in rows):
        return "its balance obeys another law: " + ("; ".join(about.get("notes", ())) or "see docs/run-format.md")
    if not any(None not in (row["imbalance_norm"], row["gap"], row["decay"]) for row in rows):
        return "it has no numbers"
    return ""


def _adaptive(name: str) -> bool:
    return bool(name) and name not in ("SGD", "SGDW")


def _caution(name: str) -> str:
    if _adaptive(name):
        return (
            f"under {name} this is a comparison and no theorem: its updates twist the imbalance at first order, and "
            "moments of escape do not grow with log(1/alpha)"
        )
    known = "the law is exact for gradient descent, up to a term of second order in the learning rate"
    return known if name else known + "; which optimizer trained this run is not known: overlay(run, optimizer='...')"


def _largest(run: RecordedRun) -> dict[tuple[str, int], tuple[list[float], list[float]]]:
    """Steps and largest singular values of every head, from the spectra that the run keeps."""
    found: dict[tuple[str, int], tuple[list[float], list[float]]] = {}
    for entry in run.snapshots:
        if not entry.spectra:
            continue
        for site, spectrum in run.spectra(entry.step).items():
            for head, value in enumerate(spectrum.values.reshape(-1, spectrum.values.shape[-1])[:, 0].tolist()):
                steps, values = found.setdefault((site, head), ([], []))
                steps.append(float(entry.step))
                values.append(value)
    return found


def _escape(steps: Sequence[float], values: Sequence[float]) -> SideBySide | None:
    first, last = values[0], values[-1]
    if not (first > 0 and last > SMALL * first and math.isfinite(last)):
        return None
    early = [place for place, value in enumerate(values) if value > APART * first]
    early = early[: next((place for place, index in enumerate(early) if values[index] > last / 10), len(early))]
    if len(early) < 2 or not values[early[-1]] > APART * values[early[0]]:
        return None
    one, two = early[0], early[-1]
    rate = math.log(values[two] / values[one]) / (steps[two] - steps[one])
    predicted = steps[two] + math.log(last / 2 / values[two]) / rate
    after = next(place for place, value in enumerate(values) if value >= last / 2)
    low, high = math.log(values[after - 1]), math.log(values[after])
    share = (math.log(last / 2) - low) / (high - low)
    reached = steps[after - 1] + share * (steps[after] - steps[after - 1])
    return SideBySide(*(torch.tensor(one, dtype=torch.float64) for one in (predicted, reached)))
