"""What dense layers are to factorized ones: the matrix in their weight, and the layer that takes their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from torch import nn

from rankwise.errors import UserError
from rankwise.layers.base import Execution, FactorizedLayer
from rankwise.layers.conv1d import FactorizedConv1D, is_conv1d
from rankwise.layers.conv2d import FactorizedConv2d
from rankwise.layers.embedding import FactorizedEmbedding
from rankwise.layers.geometry import arguments_of
from rankwise.layers.initialization import Init
from rankwise.layers.kernel_matrix import Form as MatrixForm
from rankwise.layers.kernel_matrix import kernel_to_matrix, matrix_shape
from rankwise.layers.linear import FactorizedLinear
from rankwise.layers.ranks import Kind, Rank, Shape
from rankwise.layers.tensor_ranks import Form as TensorForm
from rankwise.layers.tensorized_conv2d import TensorizedConv2d
from rankwise.layers.tensorized_linear import TensorizedLinear

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor
    from typing_extensions import TypeIs

Form = MatrixForm | TensorForm

KINDS: dict[type[nn.Module], Kind] = {nn.Linear: "linear", nn.Conv2d: "conv", nn.Embedding: "embedding"}


def kind_of(module: nn.Module) -> Kind | None:
    """What kind of layer a module is, or None for all that has no factorized form; subclasses may do more than theirs.

    >>> kind_of(nn.Linear(2, 2)), kind_of(nn.LayerNorm(2))
    ('linear', None)
    """
    return "linear" if is_conv1d(module) else KINDS.get(type(module))


def matrix_of(dense: nn.Module, form: MatrixForm) -> Float[Tensor, "m n"]:
    """The weight of a dense layer as the matrix that is factorized."""
    weight = dense.get_parameter("weight").detach()
    if is_conv1d(dense):
        return weight.mT
    return kernel_to_matrix(weight, form) if isinstance(dense, nn.Conv2d) else weight


def matrix_shape_of(dense: nn.Module, form: MatrixForm) -> Shape:
    """The shape of that matrix, from the shape of the weight alone."""
    shape: Any = dense.get_parameter("weight").shape
    if isinstance(dense, nn.Conv2d):
        return matrix_shape(shape, form)
    rows, columns = reversed(shape) if is_conv1d(dense) else shape
    return rows, columns


def is_tensor_form(form: str) -> TypeIs[TensorForm]:
    """Whether a form keeps a weight as the cores of a tensor, and not as a product of matrices."""
    return form in get_args(TensorForm)


def factorized_like(
    dense: nn.Module, *, rank: Rank, depth: int, form: Form, init: Init, execution: Execution = "auto"
) -> FactorizedLayer | TensorizedLinear | TensorizedConv2d:
    """A factorized layer of the configuration of a dense one, without values, on the meta device."""
    layer: Any = dense
    if is_tensor_form(form):
        if isinstance(dense, nn.Conv2d):
            return TensorizedConv2d(**arguments_of(dense), form=form, ranks=rank, init=init, execution=execution)
        if not isinstance(dense, nn.Linear):
            raise UserError(
                f"its layer is of type {type(dense).__name__}, which has no {form} form: plan for this model"
            )
        made = {"bias": layer.bias is not None, "device": "meta", "dtype": layer.weight.dtype}
        return TensorizedLinear(layer.in_features, layer.out_features, form=form, ranks=rank, init=init, **made)
    assert isinstance(rank, int)
    wide = rank > min(matrix_shape_of(dense, form))
    if isinstance(dense, nn.Conv2d):
        return FactorizedConv2d.like(
            dense, rank=rank, depth=depth, form=form, overcomplete=wide, init=init, execution=execution
        )
    if isinstance(dense, nn.Embedding):
        return FactorizedEmbedding.like(
            dense, rank=rank, depth=depth, overcomplete=wide, init=init, execution=execution
        )
    kind: type[FactorizedLinear] = FactorizedConv1D if is_conv1d(dense) else FactorizedLinear
    return kind.like(layer, rank=rank, depth=depth, overcomplete=wide, init=init, execution=execution)
