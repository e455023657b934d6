"""Decide which layers of a model become products or tensor forms, and of which rank."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from rankwise.errors import UserError
from rankwise.layers.base import Execution
from rankwise.layers.candidates import Candidate, StaysDense, candidates, check_module
from rankwise.layers.dense import Form, factorized_like
from rankwise.layers.initialization import Init, checked_init
from rankwise.layers.plan import Plan, PlannedLayer
from rankwise.layers.ranks import Rank, RankRule, scale_within
from rankwise.layers.readings import Matrices, Reading, reading_of
from rankwise.layers.selection import Select, inside_attention, part_of_attention, selected
from rankwise.layers.timing import inputs_of, measure

Ranks = Rank | float | Mapping[str, Rank | float]
"""A rank for every layer, the share of the largest rank (a float), or one of them for each path or glob."""


def factorization_plan(
    model: nn.Module,
    *,
    budget: float | None = None,
    rank: Ranks | None = None,
    energy: float | None = None,
    select: Select | None = None,
    init: Init = "spectral",
    depth: int = 0,
    form: Form = "spatial",
    overcomplete: bool = False,
    execution: Execution = "auto",
    rule: RankRule | None = None,
    measure_on: Any = None,
) -> Plan:
    """What `factorize` would do, without doing it; `plan.apply(model)` then does it.

    `print(plan)` shows every layer, its rank, parameters and FLOPs, and what stays dense and why.

    A model on the meta device will do, except for `energy` and `measure_on`.

    Arguments:
        measure_on: inputs of the model, a tensor, a sequence or a mapping of keyword arguments. Every layer is then
            timed on this device at the shapes that they lead to, and takes the faster way when the plan is applied.

    All others are those of `factorize`.

    >>> net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    >>> plan = factorization_plan(net, rank=8)
    >>> plan
    Plan(1 layers factorized, 1 matrices stay dense: 4,810 -> 1,738 parameters)
    >>> plan.layers[0].rank, plan.dense[0].reason
    (8, 'it writes the output: select it by name')
    """
    check_module(model)
    if sum(given is not None for given in (budget, rank, energy)) != 1:
        raise UserError("give one of budget=, rank= and energy=: for example budget=0.1, rank=8 or energy=0.9")
    if energy is not None and (isinstance(energy, bool) or not isinstance(energy, int | float)):
        raise UserError(f"energy must be a share of the squared singular values (0.9), got {energy!r}")
    checked_init(init)
    reading = reading_of(form, depth=depth, overcomplete=overcomplete, execution=execution, energy=energy, rule=rule)
    able, unable = candidates(model)
    attention = inside_attention(model)
    chosen, left = selected(able, select, attention)
    if isinstance(rank, Mapping):
        chosen, unnamed = _named(chosen, rank)
        left += unnamed
    chosen, unfit = _split(chosen, reading.obstacle)
    if isinstance(rank, int) and select is None:
        fitting, thin = _split(chosen, lambda candidate: reading.too_thin(rank, candidate))
        # Where all are too thin, the rank is to blame.
        if fitting:
            chosen, left = fitting, left + thin
    dense = (*unfit, *left, *unable)
    if not chosen:
        such = f", such as {dense[0].parameter} ({dense[0].reason})" if dense else ""
        raise UserError(f"nothing to factorize: {len(dense)} matrices stay dense{such}")
    total = sum(parameter.numel() for parameter in model.parameters())
    scale = rank if isinstance(rank, float) else None
    if budget is not None:
        scale = _scale(chosen, reading, budget, total=total, rule=rule or RankRule(), overcomplete=overcomplete)
        ranks = [reading.rank_at(scale, candidate) for candidate in chosen]
    elif energy is not None:
        assert isinstance(reading, Matrices)
        ranks = [reading.rank_that_keeps(energy, candidate) for candidate in chosen]
    else:
        assert rank is not None
        ranks = [_given(rank, candidate, reading) for candidate in chosen]
    layers = []
    for candidate, width in zip(chosen, ranks, strict=True):
        part = part_of_attention(candidate, attention)
        made = [factorized_like(each, rank=width, depth=depth, form=form, init=init) for each in candidate.modules]
        layers.append(
            PlannedLayer(
                names=candidate.names,
                kind=candidate.kind,
                weight_shape=candidate.weight_shape,
                shape=reading.shape(candidate),
                rank=width,
                depth=depth,
                parameters=reading.parameters(width, candidate),
                dense_work=sum(layer.work("one-step").multiplications for layer in made),
                work=sum(layer.work("two-step").multiplications for layer in made),
                notes=_notes(candidate, reading, width, part),
            )
        )
    plan = Plan(
        layers=tuple(layers),
        dense=dense,
        dense_parameters=total,
        scale=scale,
        depth=depth,
        form=form,
        init=init,
        execution=execution,
    )
    return plan if measure_on is None else _measured(plan, model, measure_on)


def _split(
    candidates: Sequence[Candidate], obstacle: Callable[[Candidate], str | None]
) -> tuple[list[Candidate], list[StaysDense]]:
    """Those that nothing stands in the way of, and the others with what does."""
    fitting, others = [], []
    for candidate in candidates:
        if (reason := obstacle(candidate)) is None:
            fitting.append(candidate)
        else:
            others.append(candidate.left_dense(reason))
    return fitting, others


def _scale(
    chosen: Sequence[Candidate], reading: Reading, budget: float, *, total: int, rule: RankRule, overcomplete: bool
) -> float:
    """The scale of all ranks that meets a budget."""

    def count(scale: float) -> int:
        kept = (reading.parameters(reading.rank_at(scale, each), each) - each.parameters for each in chosen)
        return total + sum(kept)

    share = _share_of(budget, total)
    if not overcomplete and count(1.0) < share * total:
        warnings.warn(
            f"budget={budget} has no effect beyond {count(1.0):,} parameters, where every rank is the largest",
            stacklevel=3,
        )
    return scale_within(count, budget=share, dense=total, nearest=rule.nearest, beyond_one=overcomplete)


def _share_of(budget: float, total: int) -> float:
    """A budget as a share of all parameters, which may be given as a count of them."""
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < math.inf:
        raise UserError(f"budget must be a share of the parameters (0.1) or a count of them (100_000), got {budget!r}")
    return budget / total if isinstance(budget, int) else budget


def _given(rank: Ranks, candidate: Candidate, reading: Reading) -> Rank:
    if isinstance(rank, Mapping):
        rank = next(value for glob, value in rank.items() if _fits(glob, candidate))
    if isinstance(rank, float) and not 0 < rank < math.inf:
        raise UserError(f"a rank given as a share of the largest one must be a finite number above 0, got {rank}")
    try:
        return reading.checked(reading.rank_at(rank, candidate) if isinstance(rank, float) else rank, candidate)
    except UserError as error:
        raise UserError(f"{candidate.names[0] or 'the model'}: {error}") from None


def _fits(glob: str, candidate: Candidate) -> bool:
    return any(fnmatchcase(name, glob) for name in candidate.names)


def _named(chosen: Sequence[Candidate], ranks: Mapping[str, Rank | float]) -> tuple[list[Candidate], list[StaysDense]]:
    """The layers that a mapping of ranks names, and the others."""
    for glob in ranks:
        if not any(_fits(glob, candidate) for candidate in chosen):
            some = ", ".join(candidate.names[0] for candidate in chosen[:5])
            raise UserError(f"rank= names '{glob}', which matches none of the {len(chosen)} selected layers: {some}")
    named = [candidate for candidate in chosen if any(_fits(glob, candidate) for glob in ranks)]
    rest = [candidate for candidate in chosen if candidate not in named]
    return named, [candidate.left_dense("rank= does not name it") for candidate in rest]


def _notes(candidate: Candidate, reading: Reading, rank: Rank, part: str | None) -> tuple[str, ...]:
    notes = reading.notes(rank, candidate)
    if part is not None:
        notes.insert(0, part)
    if reading.parameters(rank, candidate) >= candidate.parameters:
        notes.append("no fewer parameters than dense")
    return tuple(notes)


def _measured(plan: Plan, model: nn.Module, inputs: Any) -> Plan:
    """The same plan with every layer timed at what the model feeds it."""
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UserError("measure_on= runs the model: it is on the meta device, and cannot")
    fed = inputs_of(model, [layer.names[0] for layer in plan.layers], inputs)
    layers = []
    for layer in plan.layers:
        given = fed.get(layer.names[0])
        if given is None:
            layers.append(replace(layer, notes=(*layer.notes, "not measured: these inputs do not reach it")))
            continue
        dense = copy.deepcopy(model.get_submodule(layer.names[0]))
        # The values of the factors do not matter here, so none are computed.
        empty: Any = factorized_like(dense, rank=layer.rank, depth=layer.depth, form=plan.form, init=nn.init.normal_)
        layers.append(replace(layer, timing=measure(dense, empty.settle(dense), given)))
    return replace(plan, layers=tuple(layers))
