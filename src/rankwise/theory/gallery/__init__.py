"""The papers' figures about the theory, computed anew, as one JSON record that a page can draw.

The rank paper's Figures 2 and 6 to 10, and Figure 1 of the weight-decay paper; see `gallery`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from rankwise.errors import UserError
from rankwise.theory.gallery.decayed import decay_figure
from rankwise.theory.gallery.diagonal import diagonal_figure
from rankwise.theory.gallery.matrices import matrix_figure
from rankwise.theory.problems.attention_head import head_toy

FORMAT, VERSION = "rankwise.theory.gallery", 1
ALPHAS = (1e-1, 1e-2, 1e-4, 1e-8, 1e-16, 1e-32)
DECAYS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2)


def gallery(
    *,
    width: int = 8,
    tokens: int = 10,
    samples: int = 200,
    stages: int = 10,
    alphas: Sequence[float] = ALPHAS,
    decays: Sequence[float] = DECAYS,
    seed: int = 1,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Compute every figure.

    The paper's own size is a width of 50, 10 tokens and 1,000 samples: minutes instead of seconds.

    Arguments:
        width: of the toy head.
        tokens: of each sample.
        samples: of the data.
        stages: how many stages of the greedy path the runs are to cover.
        alphas: the scales of initialization, between 0 and 1.
        decays: the coefficients of the weight-decay figure, the largest last.
        seed: of data, teacher and start.
        progress: told what is computed next.

    Returns:
        A record of numbers, lists and words: `json.dumps` takes it.
    """
    if not alphas or not all(0 < one < 1 for one in alphas):
        raise UserError(f"alphas {tuple(alphas)} were asked for: give scales between 0 and 1, such as 1e-8")
    if not decays or not all(one >= 0 and math.isfinite(one) for one in decays):
        raise UserError(f"decays {tuple(decays)} were asked for: give numbers that are not negative")
    if stages < 1:
        raise UserError(f"{stages} stages were asked for: give a positive number")
    toy = head_toy(width=width, tokens=tokens, samples=samples, seed=seed)
    ordered = sorted(set(alphas), reverse=True)
    return {
        "format": FORMAT,
        "version": VERSION,
        "rankwise": version("rankwise"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": {"width": width, "tokens": tokens, "samples": samples, "stages": stages, "seed": seed},
        "diagonal": diagonal_figure(toy, alphas=ordered, stages=stages, seed=seed, progress=progress),
        "matrices": matrix_figure(toy, alphas=ordered, seed=seed, progress=progress),
        "decay": decay_figure(decays=sorted(set(decays)), seed=seed, progress=progress),
    }
