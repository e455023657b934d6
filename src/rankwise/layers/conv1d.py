"""A linear layer in the place of GPT-2's, which stores its weight input first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankwise.errors import UserError, require
from rankwise.layers.base import Execution
from rankwise.layers.initialization import Init
from rankwise.layers.linear import FactorizedLinear


class FactorizedConv1D(FactorizedLinear):
    """`FactorizedLinear` for `transformers.pytorch_utils.Conv1D`: its `.weight` and its dense layer are `[in, out]`.

    The factors are those of a linear layer, `[out, r]` first, so that whatever reads products need not know.
    """

    @classmethod
    def like(
        cls,
        dense: Any,
        *,
        rank: int,
        depth: int = 0,
        overcomplete: bool = False,
        init: Init = "spectral",
        execution: Execution = "auto",
    ) -> FactorizedConv1D:
        inputs, outputs = dense.weight.shape
        return cls(
            inputs,
            outputs,
            rank=rank,
            depth=depth,
            overcomplete=overcomplete,
            init=init,
            execution=execution,
            device="meta",
            dtype=dense.weight.dtype,
        )

    @staticmethod
    def _check(dense: Any) -> None:
        if not is_conv1d(dense):
            raise UserError(f"from_dense takes the place of transformers' Conv1D, got a {type(dense).__name__}")

    def _at_once(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight.mT, self.bias)

    def _as_matrix(self, weight: Tensor) -> Tensor:
        return weight.mT

    def _as_weight(self, matrix: Tensor) -> Tensor:
        return matrix.mT

    def _dense_layer(self, device: torch.device | str) -> Any:
        made = require("transformers.pytorch_utils", extra="hf").Conv1D
        with torch.device(device):
            return made(self.out_features, self.in_features).to(self.factors[0].dtype)


def is_conv1d(module: nn.Module) -> bool:
    """Whether a module is GPT-2's linear layer; nothing is imported to find out."""
    kind = type(module)
    return (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")
