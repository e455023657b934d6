"""What was proved of each site, how, and how closely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rankwise.sites.sites import Sites

if TYPE_CHECKING:
    from rich.table import Table

Status = Literal["passed", "failed", "absent"]


@dataclass(frozen=True)
class Proof:
    """The outcome of one proof: passed, failed, or absent because it does not apply or could not be carried out.

    Arguments:
        status: the outcome.
        error: the largest error relative to the largest number to be reproduced; None where nothing was compared.
        tolerance: the largest error that passes.
        detail: how it was proved, or why it was not.
        partial: whether it leaves something open that the other proof must close.
    """

    status: Status
    error: float | None = None
    tolerance: float | None = None
    detail: str = ""
    partial: bool = False

    @classmethod
    def of(cls, error: float, tolerance: float, detail: str = "") -> Proof:
        if error != error:
            return cls.absent("the module's numbers are not finite on these inputs")
        return cls("passed" if error <= tolerance else "failed", error, tolerance, detail)

    @classmethod
    def absent(cls, reason: str) -> Proof:
        return cls("absent", detail=reason)

    def __str__(self) -> str:
        number = f" {self.error:.1e}" if self.error is not None else ""
        return f"{self.status}{number}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The proofs of one attention site.

    Arguments:
        site: the site's name.
        value: reproduced logits (QK) or outputs (OV) of the real module; only this proves the orientation.
        gauge: moves of the factors that must, and must not, change the module's output.
    """

    site: str
    value: Proof
    gauge: Proof

    @property
    def passed(self) -> bool:
        """Every number was reproduced; or, where none could be seen, the gauge moves did what they must.

        Reproduced numbers stand even where a gauge move changes the output: then something else reads the factors too.
        """
        by_gauge = self.gauge.status == "passed"
        if self.value.status == "passed":
            return by_gauge or not self.value.partial
        return self.value.status == "absent" and by_gauge

    @property
    def orientation(self) -> bool:
        """Whether it is proved which index is the query's and which the key's."""
        return self.value.status == "passed"

    @property
    def reason(self) -> str:
        """Why it did not pass, "" where it did."""
        if self.passed:
            return ""
        proofs = {"value": self.value, "gauge": self.gauge}
        return "; ".join(
            f"{name} proof {proof}" for name, proof in proofs.items() if proof.status != "passed" or proof.partial
        )


class Certificates(Mapping[str, Certificate]):
    """The certificates of all attention sites by name; true when every one passed (and there is at least one).

    Arguments:
        sites: the sites that were put to the proof.
        certificates: the certificate of each attention site.
    """

    def __init__(self, sites: Sites, certificates: Mapping[str, Certificate]) -> None:
        self._certificates = dict(certificates)
        self.sites = sites.as_certified({name: "here" for name, each in certificates.items() if each.passed})

    def __getitem__(self, name: str) -> Certificate:
        return self._certificates[name]

    def __iter__(self):
        return iter(self._certificates)

    def __len__(self) -> int:
        return len(self._certificates)

    def __bool__(self) -> bool:
        return len(self) > 0 and not self.failures

    @property
    def failures(self) -> dict[str, str]:
        """The sites that did not pass, each with the reason."""
        return {name: each.reason for name, each in self.items() if not each.passed}

    def table(self) -> Table:
        """Every attention site in a row, with the outcome of each proof."""
        from rich.table import Table
        from rich.text import Text

        passed = len(self) - len(self.failures)
        table = Table(title=f"{passed} of {len(self)} attention sites certified")
        for column in ("site", "certified", "value", "gauge"):
            table.add_column(column)
        for name, each in self.items():
            row = (name, "here" if each.passed else "no", str(each.value), str(each.gauge))
            table.add_row(*map(Text, row))
        return table

    def __rich__(self) -> Table:
        return self.table()

    def __repr__(self) -> str:
        return f"Certificates({len(self) - len(self.failures)} of {len(self)} attention sites passed)"
