"""The two ways in which papers write weight decay on factors, which differ by a factor of two in everything."""

from __future__ import annotations

import math
from enum import Enum

from rankwise.errors import UserError


class Convention(Enum):
    """How a coefficient `lam` of decay on two factors is meant, for `W = A R`.

        HALVED    (lam / 2) (|A|^2 + |R|^2),  which presses like    lam |W|_*
        WHOLE      lam      (|A|^2 + |R|^2),  which presses like  2 lam |W|_*

    torch's `SGD(weight_decay=lam)` adds `lam A` to the gradient and is HALVED; so are the body and the proofs of
    "Weight decay induces low-rank attention layers" (arXiv 2410.23819), whose abstract writes the penalty of WHOLE
    beside the nuclear norm of HALVED.

    >>> Convention.HALVED.pressure(0.3), Convention.WHOLE.pressure(0.3)
    (0.3, 0.6)
    """

    HALVED = 1.0
    WHOLE = 2.0

    def pressure(self, decay: float) -> float:
        """The coefficient of the nuclear norm: what the gradient of the penalty multiplies each factor by."""
        return self.value * checked_decay(decay)


def checked_decay(decay: float) -> float:
    """A coefficient of decay, or the reason why it is none."""
    if not (decay >= 0 and math.isfinite(decay)):
        raise UserError(f"a decay of {decay} was given: give a finite number that is not negative, such as 0.1")
    return float(decay)
