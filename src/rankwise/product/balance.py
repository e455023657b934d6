"""The certificate that ties weight decay on two factors to the nuclear norm of their product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.groups import concatenated
from rankwise.product.guarded import guarded, thin_svd
from rankwise.product.null import NullValue, null_model
from rankwise.product.product import Product

if TYPE_CHECKING:
    from jaxtyping import Float

# Singular values of the core below this share of the largest are rotated once more, among themselves: the rotation of
# a matrix is exact to roundoff over value, and their own matrix is known to far more digits than they are in the whole.
GRADED_SHARE = 1e-8
# How often that is repeated. Twice covers values down to 1e-24 of the largest, beyond what float64 entries can tell.
GRADED_STEPS = 2


@dataclass(frozen=True)
class Balance:
    """How far two factors are from sharing their product evenly, for every matrix of a stack, in float64.

    For `A = left` and `B = right`, decay charges the half-sum `(|A|^2 + |B|^2) / 2`, which exceeds the nuclear norm
    `|A B|_*` by the gap. The gap is zero if and only if the imbalance `D = A^T A - B B^T` is, and always

        |D|_*^2 / (4 (|A|^2 + |B|^2))  <=  gap  <=  |D|_* / 2.

    That decay drives the gap to zero is a theorem for gradient descent and flow on a loss of the product. It does not
    hold under AdamW, rotary embeddings (see `pair_balance`) or normalized queries and keys.

    Arguments:
        imbalance: `D`, one small matrix for each product.
        gap: half-sum minus nuclear norm, without cancellation.
        half_sum: half of the factors' squared Frobenius norms.
        nuclear: the nuclear norm of the product.
        error: an absolute bound for the error of the gap.
        nuclear_error: the same for the nuclear norm.
        imbalance_norm: `|D|_F`.
        relative_imbalance: `|D|_F` over the root mean square of `|A^T A|_F` and `|B B^T|_F`.
        widths: the dimensions `(m, r, n)` that the null is drawn for.
        method: how the gap was computed.
        failures: why a matrix has no balance, by its flattened index; its numbers are NaN, its errors inf.
    """

    imbalance: Float[Tensor, "*batch r r"]
    gap: Float[Tensor, "*batch"] = field(kw_only=True)
    half_sum: Float[Tensor, "*batch"] = field(kw_only=True)
    nuclear: Float[Tensor, "*batch"] = field(kw_only=True)
    error: Float[Tensor, "*batch"] = field(kw_only=True)
    nuclear_error: Float[Tensor, "*batch"] = field(kw_only=True)
    imbalance_norm: Float[Tensor, "*batch"] = field(kw_only=True)
    relative_imbalance: Float[Tensor, "*batch"] = field(kw_only=True)
    widths: tuple[int, int, int] = field(kw_only=True)
    method: str = field(kw_only=True, default="bures")
    failures: Mapping[int, str] = field(kw_only=True, default_factory=dict)

    @property
    def relative(self) -> Float[Tensor, "*batch"]:
        """The gap over the half-sum, between 0 and 1; 0 for zero factors, which are balanced."""
        return self.gap / torch.where(self.half_sum == 0, 1.0, self.half_sum)

    @property
    def null(self) -> NullValue:
        """What `relative` is for random factors of these widths and one scale: small as well, near `r / 4 m`."""
        return null_model(self.widths).relative_gap()

    @property
    def null_imbalance(self) -> NullValue:
        """What `relative_imbalance` is for random factors of these widths and one scale."""
        return null_model(self.widths).relative_imbalance()


def balance(product: Product, *, group: int | None = None) -> Balance:
    """The balance of a product of two factors.

    With triangles `T_A^T T_A = A^T A` and `T_B^T T_B = B B^T`, the gap is half a squared Bures distance,

        gap = min_O |T_A - O T_B|_F^2 / 2 = |X - Y|_F^2 / 2,    X = U^T T_A,  Y = V^T T_B,  U S V^T = svd(T_A T_B^T),

    a sum of squares in which nothing cancels; and `D = X^T X - Y^T Y` is the symmetric part of `(X - Y)^T (X + Y)`.
    What remains is the rounding of the factors' own rotation, `d = c u (|A| + |B|)`, hence an error of `sqrt(2 gap) d +
    d^2`.

    Arguments:
        product: two factors; a sum or a change has no factors of its own and is refused. For a chain see
            `chain_balance`, for rotary queries and keys `pair_balance`.
        group: the batch axis along which heads share one factor: the balance of their concatenation, for which the laws
            of decay hold with grouped heads, one for each group.

    >>> even = balance(Product(torch.tensor([[2.0]]), torch.tensor([[2.0]])))
    >>> odd = balance(Product(torch.tensor([[4.0]]), torch.tensor([[1.0]])))
    >>> even.gap.item(), odd.gap.item(), odd.half_sum.item(), odd.nuclear.item()
    (0.0, 4.5, 8.5, 4.0)
    """
    check_own_factors(product)
    if product.depth > 2:
        raise UserError(f"balance takes two factors, {product!r} has {product.depth}: use chain_balance(p) for a chain")
    if group is not None:
        product = concatenated(product, group)
    left, right = product.factors
    return junction(left, right)


def check_own_factors(product: Product) -> None:
    """Refuse what has no balance: single matrices, sums and changes."""
    if product.depth == 1:
        raise UserError(f"{product!r} is a single matrix: balance compares two factors, Product(left, right)")
    if product.is_sum or product.start is not None:
        raise UserError(
            f"{product!r} is a sum or a change of products: its factors are concatenations, which have no balance; "
            "take the balance of the products it was made of"
        )


@torch.no_grad()
def junction(left: Float[Tensor, "*batch m r"], right: Float[Tensor, "*batch r n"]) -> Balance:
    """The balance of two neighbouring factors."""
    widths = (left.shape[-2], left.shape[-1], right.shape[-1])
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    triangles = _triangle(left.double()), _triangle(right.double().mT)
    rows = max(triangle.shape[-2] for triangle in triangles)
    one, two = (_with_rows(triangle, rows).expand(*batch, rows, widths[1]) for triangle in triangles)
    one, two, values, failures = _aligned(one, two)
    difference = one - two
    gap = difference.square().sum((-2, -1)) / 2
    product_of_sum = difference.mT @ (one + two)
    imbalance = (product_of_sum + product_of_sum.mT) / 2
    norms = torch.linalg.matrix_norm(one), torch.linalg.matrix_norm(two)
    rounding = 2 * sum(widths) * torch.finfo(torch.float64).eps
    moved = rounding * (norms[0] + norms[1])
    grams = [(factor @ factor.mT).square().sum((-2, -1)) for factor in (one, two)]
    mean_gram = ((grams[0] + grams[1]) / 2).sqrt()
    imbalance_norm = torch.linalg.matrix_norm(imbalance)
    return Balance(
        imbalance,
        gap=gap,
        half_sum=(norms[0].square() + norms[1].square()) / 2,
        nuclear=values.sum(-1),
        error=((2 * gap).sqrt() * moved + moved.square()).nan_to_num(torch.inf),
        nuclear_error=(rounding * values.shape[-1] ** 0.5 * norms[0] * norms[1]).nan_to_num(torch.inf),
        imbalance_norm=imbalance_norm,
        relative_imbalance=imbalance_norm / torch.where(mean_gram == 0, 1.0, mean_gram),
        widths=widths,
        failures=failures,
    )


def _aligned(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor, Tensor, Mapping[int, str]]:
    """Rotate the rows of both as near to each other as can be: `one @ two^T` becomes diagonal and not negative.

    Also returns that diagonal, the singular values, and the failures (whose rows are NaN).
    """
    decomposition = guarded(thin_svd, one @ two.mT)
    left, values, right = decomposition.outputs
    one, two = left.mT @ one, right @ two
    size = values.shape[-1]
    identity = torch.eye(size, dtype=values.dtype, device=values.device)
    tiny = values < GRADED_SHARE * values[..., :1]
    for _ in range(GRADED_STEPS):
        if not bool(tiny.any()):
            break
        block = torch.where(tiny[..., :, None] & tiny[..., None, :], one @ two.mT, 0.0)
        scale = block.abs().amax((-2, -1), keepdim=True)
        # The rest is aligned already: a multiple of the identity, larger than the block, turns both sides alike.
        block = block / torch.where(scale > 0, scale, 1.0) + 2 * size * identity * ~tiny[..., None]
        left, turned, right = guarded(thin_svd, block).outputs
        one, two = left.mT @ one, right @ two
        inside = torch.where(turned > size, 0.0, turned)
        tiny = (turned <= size) & (inside < GRADED_SHARE * inside.amax(-1, keepdim=True))
    return one, two, values, decomposition.failures


def _triangle(factor: Tensor) -> Tensor:
    """`T` with `T^T T = factor^T factor`, of no more rows than columns."""
    return torch.linalg.qr(factor, mode="r").R if factor.shape[-2] > factor.shape[-1] else factor


def _with_rows(triangle: Tensor, rows: int) -> Tensor:
    return torch.nn.functional.pad(triangle, (0, 0, 0, rows - triangle.shape[-2]))
