"""Put products or tensor forms in the place of a model's weights."""

from __future__ import annotations

from typing import Any

from torch import nn

from rankwise.layers.base import Execution
from rankwise.layers.dense import Form
from rankwise.layers.initialization import Init
from rankwise.layers.planning import Ranks, factorization_plan
from rankwise.layers.ranks import RankRule
from rankwise.layers.selection import Select


def factorize(
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
) -> Any:
    """A copy of a model with products, or tensor forms, in the place of its weights; the model is left alone.

    `factorization_plan` shows beforehand what this does. Make the optimizer afterwards, from the copy's parameters.

    Arguments:
        model: any module tree.
        budget: the parameters that the whole model may have: a share of what it has now (0.1), or a count (100_000).
            One scale for all layers is found by bisection; or
        rank: the rank of every layer (8; without a selection, thinner layers stay dense), the share of its largest
            rank (0.1), or a mapping of paths or globs to one of them, which leaves all other layers dense. A tensor
            form has several ranks: a share holds for each of them, and they may be given as a tuple; or
        energy: the share of its squared singular values that each weight keeps, as it is now.
        select: paths or globs of the layers to factorize, or a function of path and module. By default all but the
            first convolution, the last linear layer and the projections of attention.
        init: how factors start: from the weights as they are ("spectral"), see `rankwise.Spectral`, or each filled by
            a function of `torch.nn.init`.
        depth: the number of inner factors.
        form: how kernels become matrices, "spatial" or "channel"; or the tensor form of kernels and linear layers,
            "tensor-train", "tucker" or "cp", which takes no `energy`, `depth`, `overcomplete` and `rule`.
        overcomplete: allow ranks above the largest one, for wide layers.
        execution: see `FactorizedLinear`.
        rule: what a scale means and how a budget is met; `rankwise.layers.ranks.PAPER_RULE` is the paper's.

    >>> net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    >>> factorize(net, rank=8)
    Sequential(
      (0): FactorizedLinear(in_features=64, out_features=64, rank=8, depth=0, bias=True, execution='auto')
      (1): ReLU()
      (2): Linear(in_features=64, out_features=10, bias=True)
    )
    >>> factorize(net, form="tensor-train", rank=0.5)[0]
    TensorizedLinear(in_features=64, out_features=64, form='tensor-train', modes=16x16x16, ranks=8x8, bias=True)
    """
    plan = factorization_plan(
        model,
        budget=budget,
        rank=rank,
        energy=energy,
        select=select,
        init=init,
        depth=depth,
        form=form,
        overcomplete=overcomplete,
        execution=execution,
        rule=rule,
    )
    return plan.apply(model)
