"""What a scan is asked to compute."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

import torch

from rankwise.errors import UserError
from rankwise.product.catalogue import MEASURES, find_measure
from rankwise.product.spectrum import Method
from rankwise.scans.select import Selection
from rankwise.sites.site import Kind
from rankwise.text import printable

# Of these kinds a scan computes whole spectra unless told otherwise; of the others, norms.
WITH_SPECTRA = frozenset({"qk", "ov", "lora", "linear", "conv"})

Weights = Literal["stored", "effective"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a scan computes.

    Arguments:
        method, tolerance: of the spectra, as in `Product.spectrum`.
        selection: which sites.
        spectra: the kinds whose spectra are computed; other sites get their norms.
        measures: which measures, by name.
        weights: the weights as stored, or the effective product with biases and gains folded in.
        device: where to compute; where the tensors are by default.
        draws: random products behind every null value.
    """

    method: Method = "auto"
    tolerance: float = 1e-6
    selection: Selection = field(default_factory=Selection)
    spectra: frozenset[str] = WITH_SPECTRA
    measures: tuple[str, ...] = tuple(MEASURES)
    weights: Weights = "stored"
    device: str | None = None
    draws: int = 64

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise UserError(f"there is no method '{self.method}': choose from {', '.join(get_args(Method))}")
        if not 0 < self.tolerance < 1:
            raise UserError(f"the tolerance is a share of the largest value between 0 and 1, got {self.tolerance}")
        if self.weights not in get_args(Weights):
            raise UserError(f"weights are 'stored' or 'effective', not '{self.weights}'")
        for name in self.measures:
            find_measure(name)
        if unknown := sorted(self.spectra - set(get_args(Kind))):
            raise UserError(
                f"there is no kind '{printable(unknown[0])}' of site: choose from {', '.join(get_args(Kind))}"
            )
        if self.device is not None:
            try:
                # What spectra need most, and not every device has: float64, and values that can be looked at.
                torch.eye(2, dtype=torch.float64, device=self.device).sum().item()
            except (RuntimeError, AssertionError, TypeError) as error:
                reason = printable(str(error).strip().split("\n")[0].split(". ")[0])
                raise UserError(
                    f"cannot compute on device '{printable(self.device)}': {reason}; leave it out to compute on the cpu"
                ) from None

    @classmethod
    def from_words(
        cls,
        *,
        select: Iterable[str] = (),
        measures: Iterable[str] = (),
        spectra: str | None = None,
        method: str = "auto",
        tolerance: float = 1e-6,
        weights: str = "stored",
        device: str | None = None,
    ) -> Settings:
        """The settings that the words of a command line mean; what is empty keeps its default."""
        names = tuple(name.strip() for word in measures for name in word.split(",") if name.strip())
        return cls(
            method=cast(Method, method),
            tolerance=tolerance,
            selection=Selection.parse(select),
            spectra=WITH_SPECTRA if spectra is None else parse_kinds(spectra),
            measures=names or tuple(MEASURES),
            weights=cast(Weights, weights),
            device=device,
        )

    def record(self) -> dict[str, Any]:
        """The settings as a scan's record keeps them."""
        return {
            "method": self.method,
            "tolerance": self.tolerance,
            "select": str(self.selection) or None,
            "spectra": sorted(self.spectra),
            "measures": list(self.measures),
            "weights": self.weights,
            "device": self.device,
            "draws": self.draws,
        }


def parse_kinds(text: str) -> frozenset[str]:
    """The kinds in `qk,ov`; `none` means no kind.

    >>> sorted(parse_kinds("qk, ov")), sorted(parse_kinds("none"))
    (['ov', 'qk'], [])
    """
    return frozenset(kind.strip() for kind in text.split(",") if kind.strip()) - {"none"}
