"""What dense layers are to factorized ones: the matrix in their weight, and the layer that takes their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from rankwise.layers.base import Execution, FactorizedLayer
from rankwise.layers.conv1d import FactorizedConv1D, is_conv1d
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


def kind_of(module: nn.Module) -> Kind | None:
    """What kind of layer a module is, or None for all that has no factorized form; subclasses may do more than theirs.

    >>> kind_of(nn.Linear(2, 2)), kind_of(nn.LayerNorm(2))
    ('linear', None)
    """
    return "linear" if is_conv1d(module) else KINDS.get(type(module))


def matrix_of(dense: nn.Module, form: Form) -> Float[Tensor, "m n"]:
    """The weight of a dense layer as the matrix that is factorized."""
    weight = dense.get_parameter("weight").detach()
    if is_conv1d(dense):
        return weight.mT
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
    kind: type[FactorizedLinear] = FactorizedConv1D if is_conv1d(dense) else FactorizedLinear
    layer: Any = dense
    return kind.like(layer, rank=rank, depth=depth, overcomplete=wide, init=init, execution=execution)
