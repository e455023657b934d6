"""The certificate that ties weight decay on two factors to the nuclear norm of their product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.arithmetic import computes
from rankwise.product.bures import bures
from rankwise.product.gram import column_gram
from rankwise.product.groups import concatenated
from rankwise.product.guarded import NOT_FINITE, finite
from rankwise.product.null import NullValue, null_model
from rankwise.product.product import Product
from rankwise.product.shapes import broadcast
from rankwise.product.spectrum import Spectrum

if TYPE_CHECKING:
    from jaxtyping import Float

# Grams answer where they hold the gap to this share of it; the smaller gaps are left to the Bures distance.
GRAM_SHARE = 1e-6

OUT_OF_RANGE = "the squares of a factor's entries are beyond the range of float64"


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
        method: how the gap was computed, "gram64" or "bures"; one for each matrix, flattened, where they differ.
        failures: why a matrix has no balance, by its flattened index; its numbers are NaN, its errors inf.
    """

    imbalance: Float[Tensor, "*batch r r"] = field(repr=False)
    gap: Float[Tensor, "*batch"] = field(kw_only=True)
    half_sum: Float[Tensor, "*batch"] = field(kw_only=True)
    nuclear: Float[Tensor, "*batch"] = field(kw_only=True)
    error: Float[Tensor, "*batch"] = field(kw_only=True)
    nuclear_error: Float[Tensor, "*batch"] = field(kw_only=True)
    imbalance_norm: Float[Tensor, "*batch"] = field(kw_only=True)
    relative_imbalance: Float[Tensor, "*batch"] = field(kw_only=True)
    widths: tuple[int, int, int] = field(kw_only=True)
    method: str | tuple[str, ...] = field(kw_only=True)
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


@computes
def balance(product: Product, *, group: int | None = None, spectrum: Spectrum | None = None) -> Balance:
    """The balance of a product of two factors.

    From Grams and their eigenvalues where the gap is large enough for the difference `half-sum - |A B|_*` to hold six
    digits, and from half a squared Bures distance, in which nothing cancels, where it is not (see `bures`).

    Arguments:
        product: two factors; a sum or a change has no factors of its own and is refused. For a chain see
            `chain_balance`, for rotary queries and keys `pair_balance`.
        group: the batch axis along which heads share one factor: the balance of their concatenation, for which the laws
            of decay hold with grouped heads, one for each group.
        spectrum: of this product, where it is known already: it is not computed again. A group has another.

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
        spectrum = None
    left, right = product.factors
    return junction(left, right, spectrum)


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
def junction(
    left: Float[Tensor, "*batch m r"], right: Float[Tensor, "*batch r n"], spectrum: Spectrum | None = None
) -> Balance:
    """The balance of two neighbouring factors, whose product's spectrum may be known."""
    widths = (left.shape[-2], left.shape[-1], right.shape[-1])
    batch = broadcast(left.shape[:-2], right.shape[:-2])
    grams = [column_gram(factor, torch.float64).expand(*batch, *[widths[1]] * 2) for factor in (left, right.mT)]
    spectrum = Product(left, right).spectrum(method="gram64") if spectrum is None else spectrum
    half_sum = (_trace(grams[0]) + _trace(grams[1])) / 2
    imbalance = grams[0] - grams[1]
    nuclear, nuclear_error = spectrum.values.sum(-1), spectrum.error.sum(-1)
    gap = half_sum - nuclear
    error = nuclear_error + 2 * sum(widths) * torch.finfo(torch.float64).eps * half_sum
    usable = finite(grams[0]) & finite(grams[1])
    doubtful = usable & ~(error <= GRAM_SHARE * gap)
    if bool(doubtful.any()):
        chosen = (factor.expand(*batch, *factor.shape[-2:])[doubtful] for factor in (left, right))
        exact = bures(*chosen)
        gap, error = gap.masked_scatter(doubtful, exact.gap), error.masked_scatter(doubtful, exact.error)
        nuclear = nuclear.masked_scatter(doubtful, exact.nuclear)
        nuclear_error = nuclear_error.masked_scatter(doubtful, exact.nuclear_error)
        imbalance = imbalance.masked_scatter(doubtful[..., None, None], exact.imbalance)
    imbalance_norm = torch.linalg.matrix_norm(imbalance)
    mean_gram = ((grams[0].square().sum((-2, -1)) + grams[1].square().sum((-2, -1))) / 2).sqrt()
    methods = tuple("bures" if slow else "gram64" for slow in doubtful.flatten().tolist())
    return Balance(
        imbalance,
        gap=gap,
        half_sum=half_sum,
        nuclear=nuclear,
        error=error.nan_to_num(torch.inf, posinf=torch.inf),
        nuclear_error=nuclear_error.nan_to_num(torch.inf, posinf=torch.inf),
        imbalance_norm=imbalance_norm,
        relative_imbalance=imbalance_norm / torch.where(mean_gram == 0, 1.0, mean_gram),
        widths=widths,
        method=methods[0] if len(set(methods)) == 1 else methods,
        failures=_reasons(usable, finite(left) & finite(right)),
    )


def _reasons(usable: Tensor, finite_factors: Tensor) -> dict[int, str]:
    sound = finite_factors.expand(usable.shape).flatten().tolist()
    return {
        index: OUT_OF_RANGE if sound[index] else NOT_FINITE for index in (~usable).flatten().nonzero()[:, 0].tolist()
    }


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)
