"""What an optimizer remembers of a parameter, when the parameter is moved to another gauge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from rankwise.layers.touch import Touch
from rankwise.sites.factor import LayoutError

SecondMoments = Literal["reset", "estimate"]
State = Literal["no state", "moved", "estimated", "reset"]

# What is a running mean of gradients, and what of their squares, in the optimizers that keep nothing else.
_KNOWN = (
    ({"momentum_buffer"}, set()),  # SGD, Muon
    ({"exp_avg"}, {"exp_avg_sq", "max_exp_avg_sq"}),  # Adam and its relatives, Lion, Lamb
    (set(), {"sum"}),  # Adagrad
)


@torch.no_grad()
def move_state(
    optimizer: torch.optim.Optimizer, parameter: Tensor, touches: Sequence[Touch], *, second_moments: SecondMoments
) -> State:
    """Carry an optimizer's memory of one parameter along with its moves, or forget it where it cannot follow.

    Means of gradients follow exactly, `dA -> dA G^{-T}`. Means of their squares follow exactly where `G` is diagonal;
    elsewhere they are not determined, and the whole state of the parameter is dropped (the optimizer starts it anew,
    its step count included), or taken through the squares of `G`, as if the entries of a gradient were uncorrelated.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        # Its history is of all parameters as one vector, kept under the first of them.
        optimizer.state.clear()
        return "reset"
    state = optimizer.state.get(parameter)
    if not state:
        return "no state"
    tensors = {
        key: value for key, value in state.items() if isinstance(value, Tensor) and value.shape == parameter.shape
    }
    known = next(((means, squares) for means, squares in _KNOWN if set(tensors) <= means | squares), None)
    others = [key for key, value in state.items() if key not in tensors and not _is_counter(value)]
    if not tensors and not others:
        return "no state"
    if known is None or others:
        del optimizer.state[parameter]
        return "reset"
    means, squares = ([tensors[key] for key in tensors if key in kind] for kind in known)
    exact = not squares or all(touch.is_diagonal for touch in touches)
    if not exact and second_moments == "reset":
        del optimizer.state[parameter]
        return "reset"
    try:
        for touch in touches:
            for mean in means:
                touch.move_gradient(mean)
            for square in squares:
                touch.move_squares(square)
    except LayoutError:  # stored in another order than the parameter, so that no view shows its heads
        del optimizer.state[parameter]
        return "reset"
    return "moved" if exact else "estimated"


def summary(states: Iterable[State]) -> State:
    """The state of a site whose parameters fared differently: the worst of them."""
    order = get_args(State)
    return max(states, key=order.index, default=order[0])


def _is_counter(value: Any) -> bool:
    return value is None or isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
