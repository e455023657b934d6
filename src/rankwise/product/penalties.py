"""Norms to train with: differentiable, with closed-form gradients, never through the backward of an SVD.

A *penalty* is a term of a loss and carries a gradient; the *measures* of the same names (`nuclear_norm`,
`frobenius_norm`) observe, and carry an error instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankwise.product.arithmetic import computes, without_autocast
from rankwise.product.guarded import guarded, thin_svd
from rankwise.product.product import Product
from rankwise.product.two_factors import two_factors

if TYPE_CHECKING:
    from jaxtyping import Float

# Singular values below this many units of roundoff of |A| |B| are zero to the arithmetic.
ZERO_ROUNDOFFS = 8.0


@computes
def frobenius_penalty(product: Product) -> Float[Tensor, "*batch"]:
    """Half the squared Frobenius norm of every matrix, `|A B|_F^2 / 2 = <A^T A, B B^T> / 2`, to differentiate.

    Its gradients `dA = A (B B^T)` and `dB = (A^T A) B` come from the small Grams of the factors, so that nothing larger
    than a factor is formed. Chains are split in two at their narrowest width. Gradients of gradients are not offered.

    >>> left = torch.tensor([[1.0], [2.0]], requires_grad=True)
    >>> penalty = frobenius_penalty(Product(left, torch.tensor([[3.0, 4.0]])))
    >>> penalty.backward(); penalty.item(), left.grad.flatten().tolist()
    (62.5, [25.0, 50.0])
    """
    left, right = two_factors(product)
    if left is None or right is None:
        matrix = left if right is None else right
        assert matrix is not None
        return (matrix.square().sum((-2, -1)) / 2).expand(product.batch_shape)
    return _FrobeniusPenalty.apply(left, right).expand(product.batch_shape)


@computes
def nuclear_penalty(product: Product) -> Float[Tensor, "*batch"]:
    """The nuclear norm of every matrix, the sum of its singular values, to differentiate.

    With the polar factor `U V^T` of `A B`, the gradients are `dA = U V^T B^T` and `dB = A^T U V^T`. The polar factor is
    assembled from the triangular factors of `A` and `B`, in float64. Where singular values are zero (below the roundoff
    of `|A| |B|`) the norm has no gradient, and the subgradient of least norm is taken: their directions are left out.
    A matrix that is not finite, or does not decompose, has the penalty NaN and a NaN gradient; the others are unharmed.
    Gradients of gradients are not offered.

    >>> factor = torch.tensor([[3.0, 0.0], [0.0, 0.0]], requires_grad=True)
    >>> penalty = nuclear_penalty(Product(factor, torch.eye(2)))
    >>> penalty.backward(); penalty.item(), factor.grad.tolist()
    (3.0, [[1.0, 0.0], [0.0, 0.0]])
    """
    left, right = two_factors(product)
    present = left if left is not None else right
    assert present is not None
    identity = torch.eye(product.max_rank, dtype=present.dtype, device=present.device)
    value = _NuclearPenalty.apply(identity if left is None else left, identity if right is None else right)
    return value.expand(product.batch_shape)


class _FrobeniusPenalty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:  # type: ignore[override]
        left_gram, right_gram = left.mT @ left, right @ right.mT
        ctx.save_for_backward(left, right, left_gram, right_gram)
        return (left_gram * right_gram).sum((-2, -1)) / 2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[override]
        left, right, left_gram, right_gram = ctx.saved_tensors
        weight = weight[..., None, None]
        wants_left, wants_right = ctx.needs_input_grad
        with without_autocast(left.device):
            # The batch axes that a factor shares are summed over the small Gram, before the factor is touched.
            left_grad = left @ _shared(weight * right_gram, left) if wants_left else None
            right_grad = _shared(weight * left_gram, right) @ right if wants_right else None
        return left_grad, right_grad


class _NuclearPenalty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:  # type: ignore[override]
        left_frame, left_core = torch.linalg.qr(left.double())
        right_frame, right_core = torch.linalg.qr(right.double().mT)
        decomposition = guarded(thin_svd, left_core @ right_core.mT)
        left_vectors, values, right_vectors = decomposition.outputs
        scale = torch.linalg.matrix_norm(left_core) * torch.linalg.matrix_norm(right_core)
        live = values > ZERO_ROUNDOFFS * torch.finfo(torch.float64).eps * scale[..., None]
        # NaN compares false: keep it, so that a failed matrix shows in the gradient.
        polar = (left_vectors * (live | values.isnan())[..., None, :]) @ right_vectors
        ctx.save_for_backward(left_frame, left_core, right_frame, right_core, polar)
        ctx.shapes = left.shape, right.shape
        ctx.dtype = left.dtype
        return values.sum(-1).to(left.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[override]
        left_frame, left_core, right_frame, right_core, polar = ctx.saved_tensors
        left_shape, right_shape = ctx.shapes
        polar = polar * weight.double()[..., None, None]
        wants_left, wants_right = ctx.needs_input_grad
        left_grad = right_grad = None
        if wants_left:
            left_grad = (left_frame @ _shared(polar @ right_core, left_frame)).to(ctx.dtype).reshape(left_shape)
        if wants_right:
            turned = right_frame @ _shared(polar.mT @ left_core, right_frame)
            right_grad = turned.mT.to(ctx.dtype).reshape(right_shape)
        return left_grad, right_grad


def _shared(small: Tensor, factor: Tensor) -> Tensor:
    """Sum a batch of small matrices over the batch axes that a factor does not have, or has once."""
    return small.sum_to_size((*factor.shape[:-2], *small.shape[-2:]))
