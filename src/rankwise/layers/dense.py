"""What dense layers are to factorized ones: the matrix in their weight, and the layer that takes their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from rankwise.layers.base import Execution, FactorizedLayer
from rankwise.layers.conv2d import FactorizedConv2d
from rankwise.layers.embedding import FactorizedEmbedding
from rankwise.layers.initialization import Init
from rankwise.layers.kernel_matrix import Form, kernel_to_matrix
from rankwise.layers.linear import FactorizedLinear
from rankwise.layers.ranks import Kind

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

KINDS: dict[type[nn.Module], Kind] = {nn.Linear: "linear", nn.Conv2d: "conv", nn.Embedding: "embedding"}


def matrix_of(dense: nn.Module, form: Form) -> Float[Tensor, "m n"]:
    """The weight of a dense layer as the matrix that is factorized."""
    weight = dense.get_parameter("weight").detach()
    return kernel_to_matrix(weight, form) if isinstance(dense, nn.Conv2d) else weight


def factorized_like(
    dense: nn.Module, *, rank: int, depth: int, form: Form, init: Init, execution: Execution = "auto"
) -> FactorizedLayer:
    """A factorized layer of the configuration of a dense one, without values, on the meta device."""
    wide = rank > min(matrix_of(dense, form).shape)
    if isinstance(dense, nn.Conv2d):
        return FactorizedConv2d.like(
            dense, rank=rank, depth=depth, form=form, overcomplete=wide, init=init, execution=execution
        )
    if isinstance(dense, nn.Embedding):
        return FactorizedEmbedding.like(
            dense, rank=rank, depth=depth, overcomplete=wide, init=init, execution=execution
        )
    assert isinstance(dense, nn.Linear)
    return FactorizedLinear.like(dense, rank=rank, depth=depth, overcomplete=wide, init=init, execution=execution)
