"""Decide which layers of a model become products, and of which rank."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from rankwise.errors import UserError
from rankwise.layers.base import Execution, check_depth, check_execution
from rankwise.layers.candidates import Candidate, StaysDense, candidates, check_module
from rankwise.layers.dense import factorized_like, matrix_of
from rankwise.layers.initialization import Init, check_rank, checked_init
from rankwise.layers.kernel_matrix import Form, check_form
from rankwise.layers.plan import Plan, PlannedLayer, factor_parameters
from rankwise.layers.ranks import RankRule, Shape, scale_within
from rankwise.layers.selection import Select, inside_attention, part_of_attention, selected
from rankwise.layers.timing import inputs_of, measure
from rankwise.product.measures import energy_rank
from rankwise.product.product import Product

Ranks = int | float | Mapping[str, int | float]
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
    check_form(form)
    check_depth(depth)
    check_execution(execution)
    rule = rule or RankRule()
    able, unable = candidates(model)
    attention = inside_attention(model)
    chosen, left = selected(able, select, attention)
    if isinstance(rank, Mapping):
        chosen, unnamed = _named(chosen, rank)
        left += unnamed
    elif isinstance(rank, int) and select is None and not overcomplete:
        chosen, thin = _wide_enough(chosen, rank, form)
        left += thin
    if not chosen:
        stay = [*left, *unable]
        such = f", such as {stay[0].parameter} ({stay[0].reason})" if stay else ""
        raise UserError(f"nothing to factorize: {len(stay)} matrices stay dense{such}")
    shapes = [_shape(candidate, form) for candidate in chosen]
    total = sum(parameter.numel() for parameter in model.parameters())
    scale = rank if isinstance(rank, float) else None
    if budget is not None:
        search = _Search(chosen, shapes, rule, depth=depth, total=total)
        scale = search.scale(budget, overcomplete=overcomplete)
        ranks = search.ranks(scale)
    elif energy is not None:
        ranks = [_rank_that_keeps(energy, candidate, form) for candidate in chosen]
    else:
        assert rank is not None
        ranks = [_given(rank, candidate, shape, rule) for candidate, shape in zip(chosen, shapes, strict=True)]
    layers = []
    for candidate, shape, width in zip(chosen, shapes, ranks, strict=True):
        _check(candidate, shape, width, overcomplete=overcomplete)
        made = [factorized_like(each, rank=width, depth=depth, form=form, init=init) for each in candidate.modules]
        layers.append(
            PlannedLayer(
                names=candidate.names,
                kind=candidate.kind,
                weight_shape=candidate.weight_shape,
                shape=shape,
                rank=width,
                depth=depth,
                dense_work=sum(layer.work("one-step").multiplications for layer in made),
                work=sum(layer.work("two-step").multiplications for layer in made),
                notes=_notes(candidate, shape, width, depth, part_of_attention(candidate, attention)),
            )
        )
    plan = Plan(
        layers=tuple(layers),
        dense=(*left, *unable),
        dense_parameters=total,
        scale=scale,
        depth=depth,
        form=form,
        init=init,
        execution=execution,
    )
    return plan if measure_on is None else _measured(plan, model, measure_on)


class _Search:
    """The ranks of all layers at one scale, and the scale that meets a budget."""

    def __init__(
        self, chosen: Sequence[Candidate], shapes: Sequence[Shape], rule: RankRule, *, depth: int, total: int
    ) -> None:
        self.chosen, self.shapes, self.rule, self.depth, self.total = chosen, shapes, rule, depth, total

    def ranks(self, scale: float) -> list[int]:
        pairs = zip(self.chosen, self.shapes, strict=True)
        return [self.rule.rank(scale, candidate.kind, shape) for candidate, shape in pairs]

    def count(self, scale: float) -> int:
        """The parameters of the whole model at a scale."""
        pairs = zip(self.shapes, self.ranks(scale), strict=True)
        factors = sum(factor_parameters(shape, rank, self.depth) for shape, rank in pairs)
        return self.total + factors - sum(candidate.parameters for candidate in self.chosen)

    def scale(self, budget: float, *, overcomplete: bool) -> float:
        share = share_of(budget, self.total)
        if not overcomplete and self.count(1.0) < share * self.total:
            warnings.warn(
                f"budget={budget} has no effect beyond {self.count(1.0):,} parameters, where every rank is the largest",
                stacklevel=3,
            )
        return scale_within(
            self.count, budget=share, dense=self.total, nearest=self.rule.nearest, beyond_one=overcomplete
        )


def share_of(budget: float, total: int) -> float:
    """A budget as a share of all parameters, which may be given as a count of them."""
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < math.inf:
        raise UserError(f"budget must be a share of the parameters (0.1) or a count of them (100_000), got {budget!r}")
    return budget / total if isinstance(budget, int) else budget


def _shape(candidate: Candidate, form: Form) -> Shape:
    rows, columns = matrix_of(candidate.modules[0], form).shape
    return rows, columns


def _rank_that_keeps(energy: float, candidate: Candidate, form: Form) -> int:
    matrix = matrix_of(candidate.modules[0], form)
    if matrix.is_meta:
        raise UserError("energy= reads the weights: the model is on the meta device, and has none")
    rank = energy_rank(Product(matrix), energy).item()
    if rank != rank:
        raise UserError(f"the weight of {candidate.names[0]} holds NaN or Inf: it has no energy to keep")
    return max(1, int(rank))


def _given(rank: Ranks, candidate: Candidate, shape: Shape, rule: RankRule) -> int:
    if isinstance(rank, Mapping):
        rank = next(value for glob, value in rank.items() if _fits(glob, candidate))
    if isinstance(rank, float):
        if not rank > 0:
            raise UserError(f"a rank given as a share of the largest one must be above 0, got {rank}")
        return rule.rank(rank, candidate.kind, shape)
    return rank


def _fits(glob: str, candidate: Candidate) -> bool:
    return any(fnmatchcase(name, glob) for name in candidate.names)


def _named(chosen: Sequence[Candidate], ranks: Mapping[str, int | float]) -> tuple[list[Candidate], list[StaysDense]]:
    """The layers that a mapping of ranks names, and the others."""
    for glob in ranks:
        if not any(_fits(glob, candidate) for candidate in chosen):
            some = ", ".join(candidate.names[0] for candidate in chosen[:5])
            raise UserError(f"rank= names '{glob}', which matches none of the {len(chosen)} selected layers: {some}")
    named = [candidate for candidate in chosen if any(_fits(glob, candidate) for glob in ranks)]
    rest = [candidate for candidate in chosen if candidate not in named]
    return named, [candidate.left_dense("rank= does not name it") for candidate in rest]


def _wide_enough(chosen: Sequence[Candidate], rank: int, form: Form) -> tuple[list[Candidate], list[StaysDense]]:
    """The layers that can have one rank for all, and the thinner ones; if all are thinner, the rank is to blame."""
    limits = [min(_shape(candidate, form)) for candidate in chosen]
    if rank > max(limits, default=0):
        return list(chosen), []
    pairs = list(zip(chosen, limits, strict=True))
    thin = [
        candidate.left_dense(f"its largest rank is {limit}, and {rank} were asked for")
        for candidate, limit in pairs
        if rank > limit
    ]
    return [candidate for candidate, limit in pairs if rank <= limit], thin


def _check(candidate: Candidate, shape: Shape, rank: int, *, overcomplete: bool) -> None:
    try:
        check_rank(rank, shape, overcomplete=overcomplete)
    except UserError as error:
        raise UserError(f"{candidate.names[0] or 'the model'}: {error}") from None


def _notes(candidate: Candidate, shape: Shape, rank: int, depth: int, part: str | None) -> tuple[str, ...]:
    notes = [] if part is None else [part]
    if len(candidate.names) > 1:
        notes.append("tied: its factors are shared")
    if rank > min(shape):
        notes.append("wide")
    if factor_parameters(shape, rank, depth) >= candidate.parameters:
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
        empty = factorized_like(dense, rank=layer.rank, depth=layer.depth, form=plan.form, init=nn.init.normal_)
        layers.append(replace(layer, timing=measure(dense, empty.settle(dense), given)))
    return replace(plan, layers=tuple(layers))
