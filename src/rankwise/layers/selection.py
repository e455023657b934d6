"""Which of the layers that could be factorized are to be."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from rankwise.errors import UserError
from rankwise.layers.candidates import Candidate, StaysDense
from rankwise.layers.dense import kind_of
from rankwise.sites.find import find
from rankwise.sites.singles import looks_like_attention

Select = str | Collection[str] | Callable[[str, nn.Module], bool]
"""Paths of layers, globs among them allowed, or a function of a layer's path and module."""


def selected(
    able: Sequence[Candidate], select: Select | None, attention: Mapping[str, str]
) -> tuple[list[Candidate], list[StaysDense]]:
    """The layers to factorize, and those that stay dense although they could be.

    Arguments:
        able: the layers that can be factorized.
        select: what the user wants.
        attention: the parameters of attention, see `inside_attention`.

    Without a selection these are all but the first convolution, which reads the input, the last linear layer, which
    writes the output (where one can be told: it is not one of several equal ones, and no embedding is tied to another),
    and the projections of attention, which are factors of products already.
    """
    if select is None:
        return _by_default(able, attention)
    if not callable(select) and not isinstance(select, str | Collection):
        raise UserError(f"select= takes paths, globs or a function of path and module, got {select!r}")
    wanted = select if callable(select) else _by_path([select] if isinstance(select, str) else list(select), able)
    chosen, left = [], []
    for candidate in able:
        answers = [bool(wanted(name, module)) for name, module in zip(candidate.names, candidate.modules, strict=True)]
        if all(answers):
            chosen.append(candidate)
        elif any(answers):
            other = candidate.names[answers.index(False)]
            left.append(candidate.left_dense(f"it is tied to {other}, which is not selected"))
        else:
            left.append(candidate.left_dense("it is not selected"))
    return chosen, left


def _by_path(globs: Sequence[str], able: Sequence[Candidate]) -> Callable[[str, nn.Module], bool]:
    """Whether a path fits one of the globs; every glob has to fit some layer."""
    for glob in globs:
        if not any(fnmatchcase(name, glob) for candidate in able for name in candidate.names):
            some = ", ".join(candidate.names[0] or "the model itself" for candidate in able[:5])
            raise UserError(
                f"select='{glob}' matches none of the {len(able)} layers that could be factorized: "
                f"{some or 'there are none'}{', ...' if len(able) > 5 else ''}"
            )
    return lambda name, module: any(fnmatchcase(name, glob) for glob in globs)


def _by_default(able: Sequence[Candidate], attention: Mapping[str, str]) -> tuple[list[Candidate], list[StaysDense]]:
    reasons: dict[int, str] = {}
    for place, candidate in enumerate(able):
        if min(candidate.weight_shape[0], candidate.parameters // candidate.weight_shape[0]) == 1:
            reasons[place] = "it has one row or column: nothing to factorize"
        elif (part := part_of_attention(candidate, attention)) is not None:
            reasons[place] = (
                f"{part}, and a factor of a product already: shrink the heads, or select it by name"
                if candidate.kind == "linear"
                else "a part of attention that is no projection: select it by name"
            )
    rest = [place for place in range(len(able)) if place not in reasons]
    for place, reason in ((_stem(able, rest), "reads the input"), (_head(able, rest), "writes the output")):
        if place is not None and len(rest) > 1:
            reasons[place] = f"it {reason}: select it by name"
            rest.remove(place)
    left = [able[place].left_dense(reason) for place, reason in sorted(reasons.items())]
    return [able[place] for place in rest], left


def _stem(able: Sequence[Candidate], places: Sequence[int]) -> int | None:
    """The first convolution, or None."""
    return next((place for place in places if able[place].kind == "conv"), None)


def _head(able: Sequence[Candidate], places: Sequence[int]) -> int | None:
    """The last linear layer, unless it is one of several equal ones, as in blocks, or an embedding is the head."""
    kinds = {place: {kind_of(module) for module in able[place].modules} for place in places}
    if {"linear", "embedding"} in kinds.values():
        return None
    linears = [place for place in places if kinds[place] == {"linear"}]
    alike = [place for place in linears if _place_in_block(able[place]) == _place_in_block(able[linears[-1]])]
    return linears[-1] if len(alike) == 1 else None


def _place_in_block(candidate: Candidate) -> tuple[str, tuple[int, ...]]:
    """A path without its numbers, and the shape: what a layer of one block has in common with that of another."""
    return re.sub(r"\d+", "#", candidate.names[0]), candidate.weight_shape


def inside_attention(model: nn.Module) -> dict[str, str]:
    """The parameters of attention, those that no site could be made of included, each with what it is."""
    sites = find(model)
    kinds: dict[str, set[str]] = {}
    for site in sites:
        if site.kind in ("qk", "ov"):
            for name in site.parameters:
                kinds.setdefault(name, set()).add(site.kind)
    for each in sites.unread:
        if looks_like_attention(each.parameter):
            kinds.setdefault(each.parameter, set())
    fused = "a fused projection of queries, keys and values of attention"
    return {name: fused if len(found) > 1 else "a projection of attention" for name, found in kinds.items()}


def part_of_attention(candidate: Candidate, attention: Mapping[str, str]) -> str | None:
    """What a layer is to attention, or None."""
    return next((attention[f"{name}.weight"] for name in candidate.names if f"{name}.weight" in attention), None)
