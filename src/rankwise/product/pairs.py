"""Balance of rotary queries and keys: one law for each frequency, and a pair sum in place of the nuclear norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.arithmetic import computes
from rankwise.product.balance import Balance, check_own_factors, junction
from rankwise.product.groups import concatenated
from rankwise.product.null import NullValue
from rankwise.product.product import Product

if TYPE_CHECKING:
    from jaxtyping import Float, Int

PairLayout = Literal["half", "interleaved"]


@dataclass(frozen=True)
class RotaryPairs:
    """Which two dimensions of a head turn together under a rotary embedding.

    Arguments:
        layout: "half" pairs `i` with `i + rotated / 2` (Llama and GPT-NeoX in transformers); "interleaved" pairs `2 i`
            with `2 i + 1` (GPT-J, Meta's own Llama).
        rotated: how many leading dimensions of the head turn; all of them by default.

    >>> RotaryPairs("half", rotated=4).indices(6).tolist()
    [[0, 2], [1, 3]]
    """

    layout: PairLayout
    rotated: int | None = field(kw_only=True, default=None)

    def __post_init__(self) -> None:
        if self.layout not in get_args(PairLayout):
            raise UserError(f"a rotary layout is 'half' or 'interleaved', got {self.layout!r}")

    def indices(self, head_size: int) -> Int[Tensor, "pairs 2"]:
        """The pairs of dimensions of a head of a given size."""
        rotated = head_size if self.rotated is None else self.rotated
        if rotated % 2 or not 2 <= rotated <= head_size:
            raise UserError(
                f"the rotated dimensions must be even and from 2 to the head size {head_size}, got {rotated}"
            )
        dimensions = torch.arange(rotated, device="cpu")
        return dimensions.reshape(2, -1).mT if self.layout == "half" else dimensions.reshape(-1, 2)


@dataclass(frozen=True)
class PairBalance:
    """How evenly rotary queries and keys share each frequency, for every matrix of a stack, in float64.

    A rotary embedding leaves only a scale for each pair of dimensions free, so that decay acts on

        sum_p |Q_p|_F |K_p|_F + |A_u B_u|_*   (the pair sum; `u` the dimensions that do not turn),

    which presses on frequencies, not on the rank of the content product, and is never below its nuclear norm.

    Arguments:
        imbalance: `|Q_p|_F^2 - |K_p|_F^2` for every pair: what decays as `exp(-2 lam t)` under gradient flow.
        pair_gap: `(|Q_p| - |K_p|)^2 / 2` for every pair.
        strength: `|Q_p|_F |K_p|_F` for every pair.
        half_sum: half of the factors' squared Frobenius norms, all dimensions.
        pairs: the pairs of dimensions, `[pairs, 2]`.
        unrotated: the balance of the dimensions that do not turn, which obey the full matrix law; None if all turn.
        rows: the outer widths `(m, n)`, for the null.
        failures: why a matrix has no balance, by its flattened index.
    """

    imbalance: Float[Tensor, "*batch pairs"]
    pair_gap: Float[Tensor, "*batch pairs"] = field(kw_only=True)
    strength: Float[Tensor, "*batch pairs"] = field(kw_only=True)
    half_sum: Float[Tensor, "*batch"] = field(kw_only=True)
    pairs: Int[Tensor, "pairs 2"] = field(kw_only=True, repr=False)
    unrotated: Balance | None = field(kw_only=True)
    rows: tuple[int, int] = field(kw_only=True)
    failures: Mapping[int, str] = field(kw_only=True, default_factory=dict)

    @property
    def pair_sum(self) -> Float[Tensor, "*batch"]:
        """The norm that decay puts on a rotary head."""
        rest = 0.0 if self.unrotated is None else self.unrotated.nuclear
        return self.strength.sum(-1) + rest

    @property
    def gap(self) -> Float[Tensor, "*batch"]:
        """The half-sum minus the pair sum, without cancellation: a sum of squares."""
        rest = 0.0 if self.unrotated is None else self.unrotated.gap
        return self.pair_gap.sum(-1) + rest

    @property
    def relative(self) -> Float[Tensor, "*batch"]:
        """The gap over the half-sum, between 0 and 1; 0 for zero factors."""
        return self.gap / torch.where(self.half_sum == 0, 1.0, self.half_sum)

    @property
    def null(self) -> NullValue:
        """What the gap of one pair over its half-sum is for random factors: `chi` norms, in closed form.

        For `|Q_p|` and `|K_p|` chi-distributed with `2 m` and `2 n` degrees of freedom the mean is near `1 / 4 m` at
        `m = n`; the delta method gives both numbers.
        """
        return _pair_null(*self.rows)


@computes
@torch.no_grad()
def pair_balance(
    product: Product, pairs: RotaryPairs | Int[Tensor, "pairs 2"], *, group: int | None = None
) -> PairBalance:
    """The balance of a product of rotary queries and keys, frequency by frequency.

    Arguments:
        product: queries as the left factor `[*batch, m, r]`, keys as the right one, `r` the head size.
        pairs: the layout, or the pairs of dimensions themselves (each at most once); the rest does not turn.
        group: the batch axis along which heads share their keys, as for `balance`.

    >>> head = Product(torch.diag(torch.tensor([3.0, 4.0])), torch.eye(2))
    >>> turned = pair_balance(head, RotaryPairs("half"))
    >>> turned.imbalance.tolist(), round(turned.pair_sum.item(), 6)
    ([23.0], 7.071068)
    """
    check_own_factors(product)
    if product.depth > 2:
        raise UserError(f"pair_balance takes queries and keys, two factors; {product!r} has {product.depth}")
    if group is not None:
        product = concatenated(product, group)
    left, right = (factor.double() for factor in product.factors)
    index = _checked(pairs, left.shape[-1]).to(product.device)
    rest = _others(index, left.shape[-1])
    queries = _pair_norms(left, index)
    keys = _pair_norms(right.mT, index)
    difference = queries - keys
    squares = left.square().sum((-2, -1)) + right.square().sum((-2, -1))
    broken = (~squares.isfinite()).flatten().nonzero().flatten().tolist()
    return PairBalance(
        difference * (queries + keys),
        pair_gap=difference.square() / 2,
        strength=queries * keys,
        half_sum=squares / 2,
        pairs=index,
        unrotated=junction(left[..., rest], right[..., rest, :]) if len(rest) else None,
        rows=(left.shape[-2], right.shape[-1]),
        failures=dict.fromkeys(broken, "a factor holds NaN or Inf"),
    )


@computes
@torch.no_grad()
def pair_balanced(product: Product, pairs: RotaryPairs | Int[Tensor, "pairs 2"]) -> Product:
    """The same rotary head with every frequency shared evenly: `Q_p / c` and `c K_p`, `c = sqrt(|Q_p| / |K_p|)`.

    It is the only gauge that rotary dimensions allow. Dimensions that do not turn, and pairs of which one side is zero,
    are left alone.

    >>> head = pair_balanced(Product(torch.diag(torch.tensor([4.0, 4.0])), torch.eye(2)), RotaryPairs("half"))
    >>> head.left.diagonal().tolist(), head.right.diagonal().tolist()
    ([2.0, 2.0], [2.0, 2.0])
    """
    check_own_factors(product)
    left, right = (factor.double() for factor in product.factors)
    index = _checked(pairs, left.shape[-1]).to(product.device)
    queries, keys = _pair_norms(left, index), _pair_norms(right.mT, index)
    usable = (queries > 0) & (keys > 0)
    share = torch.where(usable, queries / torch.where(usable, keys, 1.0), 1.0).sqrt()
    scale = share.new_ones((*share.shape[:-1], left.shape[-1]))
    scale[..., index] = share[..., None].expand(*share.shape, 2)
    return Product(
        (left / scale[..., None, :]).to(product.left.dtype), (right * scale[..., None]).to(product.right.dtype)
    )


def _checked(pairs: RotaryPairs | Tensor, size: int) -> Tensor:
    if isinstance(pairs, RotaryPairs):
        return pairs.indices(size)
    if pairs.ndim != 2 or pairs.shape[-1] != 2 or pairs.is_floating_point():
        raise UserError(f"pairs must be integers of shape [pairs, 2], got {pairs.dtype} of shape {tuple(pairs.shape)}")
    if pairs.unique().numel() != pairs.numel() or int(pairs.min()) < 0 or int(pairs.max()) >= size:
        raise UserError(f"pairs must name dimensions 0 to {size - 1}, each at most once, got {pairs.tolist()}")
    return pairs


def _others(index: Tensor, size: int) -> Tensor:
    free = torch.ones(size, dtype=torch.bool, device=index.device)
    free[index.flatten()] = False
    return free.nonzero().flatten()


def _pair_norms(
    columns: Float[Tensor, "*batch rows r"], index: Int[Tensor, "pairs 2"]
) -> Float[Tensor, "*batch pairs"]:
    return torch.linalg.matrix_norm(columns[..., index].movedim(-2, -3))


def _pair_null(m: int, n: int) -> NullValue:
    # Squared norms are 2m and 2n on average with variances 4m and 4n; norms have variance 1/2 and differ on average.
    half_sum = float(m + n)
    offset = (2 * m) ** 0.5 - (2 * n) ** 0.5
    gap_mean = (offset**2 + 1) / 2
    gap_spread = (4 * offset**2 + 2) ** 0.5 / 2
    return NullValue(gap_mean / half_sum, spread=gap_spread / half_sum)
