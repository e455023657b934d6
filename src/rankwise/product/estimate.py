"""What every method of computing a spectrum returns: values, and how far each can be from the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@dataclass(frozen=True)
class Estimate:
    """Singular values, largest first, each with an absolute error bound; infinite where the method did not work."""

    values: Float[Tensor, "*batch k"]
    error: Float[Tensor, "*batch k"]

    @property
    def worst(self) -> Float[Tensor, "*batch"]:
        """The largest error among the values of each matrix, infinite where anything is not finite."""
        usable = self.values.isfinite() & self.error.isfinite()
        return torch.where(usable, self.error, torch.inf).amax(-1)

    def within(self, tolerance: float) -> Bool[Tensor, "*batch"]:
        """Whether every error of a matrix is at most `tolerance` times its largest value."""
        return self.worst <= tolerance * self.values.amax(-1)
