"""Logits under rotary position embedding, without knowing the angles."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rankwise.sites.certify.certificates import Proof
from rankwise.sites.certify.draws import Part

_MOST_PLACES = 16
# Angles below this do not show that anything turned.
_TURNED = 1e-3
# However badly the samples show a coefficient, an error as large as this is a wrong formula.
_ROUGHEST = 1e-2


def turning_error(
    target: Tensor,
    parts: Sequence[Part],
    seen: Tensor,
    *,
    largest: float,
    tolerance: float,
    rounding: float,
    factors: Sequence[float],
) -> Proof:
    """Fit one rotation for each pair at each pair of positions, and see what is left.

    At fixed positions the logit is `sum_p a_p (q_p . k_p) + b_p (q_p x k_p)`, where `a_p = f cos`, `b_p = f sin` of an
    angle that all samples and heads share. Least squares over samples and heads leave nothing exactly when the pairs
    are the right ones; then `a^2 + b^2 = f^2` everywhere, and where both positions are the same, `a = f` and `b = 0`:
    the logit is the product at offset 0.

    Arguments:
        target: the logits less those of the dimensions that stand still, `[samples, heads, queries, keys]`.
        parts: queries and keys.
        seen: where no mask hides the logits.
        largest: the largest logit.
        tolerance: the largest relative error that passes.
        rounding: of the cosines and sines that the module was handed.
        factors: the values that `f` may have besides 1, such as YaRN's.
    """
    square = target.shape[-1] == target.shape[-2]
    places = _places(seen.all(0), square=square)
    if not places:
        return Proof.absent("no pair of positions is visible to all heads")
    worst = 0.0
    turned = False
    turning = [part for part in parts if part.pairs]
    sizes: list[float] = []
    chosen: set[float] = set()
    for i, j in places:
        columns = [torch.cat(part.turning(i, j), -1) for part in turning]
        design = torch.cat(columns, -1).flatten(0, 1)
        wanted = target[..., i, j].reshape(-1, 1)
        if len(design) < 2 * design.shape[-1]:
            return Proof.absent(f"{len(design)} samples are too few to fit {design.shape[-1]} rotary coefficients")
        solution = torch.linalg.lstsq(design, wanted).solution
        residual = design @ solution - wanted
        worst = max(worst, float(residual.abs().max()) / largest)
        if worst > tolerance:
            return Proof("failed", worst, tolerance, "no rotation of these pairs gives the logits")
        radii, wrong = [], 0.0
        for part, found in zip(turning, solution[:, 0].split([part.angles for part in turning]), strict=True):
            functions = found.reshape(-1, part.pairs)
            radii.append(functions.square().sum(0).sqrt())
            sines = functions[1:2] if part.weight is None else functions[1:]
            if square and i == j and part.weight is None:
                wrong = max(wrong, float(sines.abs().max()))
            turned = turned or bool((sines.abs() > _TURNED).any())
        radius = torch.cat(radii)
        factor = min((1.0, *factors), key=lambda each: abs(each - float(radius.mean())))
        wrong = max(wrong, float((radius - factor).abs().max()))
        allowed = max(10 * tolerance, 4 * rounding)
        if wrong > allowed:
            # An error e of the logits moves the solution by at most |e| / the smallest singular value of the design.
            # Of e the residual shows what is orthogonal to the design, at least half of the directions.
            smallest = float(torch.linalg.svdvals(design)[-1])
            allowed = max(allowed, min(4 * float(residual.norm()) / max(smallest, 1e-30), _ROUGHEST))
        chosen.add(factor)
        sizes += [float(radius.min()), float(radius.max())]
        if wrong > allowed or len(chosen) > 1:
            detail = f"the rotation's size is {min(sizes):.6g} to {max(sizes):.6g} and should be {factor:.6g}"
            return Proof("failed", max(worst, wrong), tolerance, detail)
    if not turned:
        return Proof(
            "failed", worst, tolerance, "the logits do not turn with the position: there is no rotary embedding here"
        )
    (factor,) = chosen
    return Proof.of(worst, tolerance, "rotary" if factor == 1.0 else f"rotary, times its attention factor {factor:.6g}")


def _places(seen: Tensor, *, square: bool) -> list[tuple[int, int]]:
    """Up to `_MOST_PLACES` visible pairs of positions, some of them equal, spread over all distances."""
    every = [(int(i), int(j)) for i, j in seen.nonzero().tolist()]
    same = [place for place in every if square and place[0] == place[1]]
    apart = [place for place in every if place not in set(same)]
    count = _MOST_PLACES - min(len(same), 3)
    step = max(1, len(apart) // count)
    return same[-3:] + apart[::step][:count]
