"""Rebalance the cores of tensorized layers, whose weights are contractions and not sites."""

from __future__ import annotations

import torch
from torch import nn

from rankwise.layers.gauges import NoGauge, Shares
from rankwise.layers.readers import Readers
from rankwise.layers.rebalanced import LeftAlone, Moved
from rankwise.layers.tensorized import TensorizedLayer
from rankwise.product.guarded import NOT_FINITE
from rankwise.product.tensor_forms import TensorForm

MOVES = {"cp": "a scale per term", "tucker": "a matrix per mode", "tensor-train": "a matrix per bond"}


@torch.no_grad()
def balance_cores(
    model: nn.Module, readers: Readers, optimizer: torch.optim.Optimizer | None
) -> tuple[list[Moved], list[LeftAlone]]:
    """Balance the cores of every tensorized layer in place; the optimizer's memory of them is reset."""
    moved: list[Moved] = []
    left_alone: list[LeftAlone] = []
    for path, layer in model.named_modules():
        if not isinstance(layer, TensorizedLayer):
            continue
        name = f"{path}.tensor" if path else "tensor"
        try:
            moved.append(_balanced(name, path, layer, readers, optimizer))
        except NoGauge as reason:
            left_alone.append(LeftAlone(name, str(reason)))
    return moved, left_alone


def _balanced(
    name: str, path: str, layer: TensorizedLayer, readers: Readers, optimizer: torch.optim.Optimizer | None
) -> Moved:
    for core_name, parameter in layer.named_parameters():
        if any(parameter is core for core in layer.cores):
            readers.refuse_aliases(path, f"{path}.{core_name}" if path else core_name)
    if not all(bool(core.isfinite().all()) for core in layer.cores):
        raise NoGauge(NOT_FINITE)
    if any(core.grad is not None for core in layer.cores):
        raise NoGauge(
            "its gradients belong to the cores as they are: rebalance before backward(), or after zero_grad()"
        )
    # Copies: of a layer in float64 the other cores would be the live ones.
    before = type(layer.tensor)(tuple(core.detach().double().clone() for core in layer.cores))
    balanced = before.balanced()
    if not any(bool(core.any()) for core in balanced.cores):
        raise NoGauge("the weight is zero: there is no scale to share")
    for core, value in zip(layer.cores, balanced.cores, strict=True):
        core.copy_(value)
    after = layer.tensor.to(torch.float64)
    known = [optimizer.state.pop(core, None) for core in layer.cores] if optimizer is not None else []
    return Moved(
        site=name,
        gauge=MOVES[layer.form],
        before=_shares(before, balanced),
        after=_shares(after, balanced),
        change=((after.dense() - before.dense()).norm() / before.dense().norm()).item(),
        state=None if optimizer is None else ("reset" if any(known) else "no state"),
    )


def _shares(form: TensorForm, balanced: TensorForm) -> Shares:
    """Half the squared norms of all cores, and what of it balancing takes."""
    half_sum, least = (sum(core.double().square().sum().item() for core in one.cores) / 2 for one in (form, balanced))
    return Shares(half_sum, max(half_sum - least, 0.0))
