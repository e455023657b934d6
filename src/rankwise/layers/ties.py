"""Models of transformers list their tied parameters by name: tell them what these are called now."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from rankwise.layers.base import FactorizedLayer

# Of the class, and of the model that was made from it.
_LISTS = ("_tied_weights_keys", "all_tied_weights_keys")
_NAME = re.compile(r"(?P<layer>.*)\.(?P<parameter>weight|factors\.(?P<position>\d+))")


def retie(model: nn.Module) -> None:
    """Bring the lists of tied parameters in line with the layers as they are, factorized or dense again.

    Without that, saving such a model finds tied tensors that it does not know of, and refuses.
    """
    for module in model.modules():
        for name in _LISTS:
            ties = getattr(module, name, None)
            if isinstance(ties, dict) and ties:
                setattr(module, name, _as_they_are(module, ties))


def _as_they_are(model: nn.Module, ties: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for target, source in ties.items():
        ends = [_NAME.fullmatch(each) for each in (target, source) if isinstance(each, str)]
        if len(ends) != 2 or None in ends:
            found[target] = source
            continue
        one, two = (end["layer"] for end in ends if end is not None)
        layer = _layer(model, one)
        if isinstance(layer, FactorizedLayer):
            found |= {f"{one}.factors.{place}": f"{two}.factors.{place}" for place in range(len(layer.factors))}
        elif layer is not None and hasattr(layer, "weight"):
            found[f"{one}.weight"] = f"{two}.weight"
        else:
            found[target] = source
    return found


def _layer(model: nn.Module, path: str) -> nn.Module | None:
    try:
        return model.get_submodule(path)
    except AttributeError:  # a pattern, or a part that this model has not
        return None
