"""Where the factors of a layer start: spectrally, from a dense weight, or each drawn for itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from rankwise.errors import UserError
from rankwise.product.guarded import guarded, thin_svd

if TYPE_CHECKING:
    from jaxtyping import Float

Draw = Callable[[Tensor], object]
"""A function that fills a tensor in place, as those of `torch.nn.init` do."""


@dataclass(frozen=True, kw_only=True)
class Spectral:
    """Start from the best approximation of a dense weight, its singular values shared evenly among the factors.

    `W = P S R^T` becomes `P S^{1/2}` and `S^{1/2} R^T`, cut off at the rank: the product is the best approximation of
    its rank (Eckart and Young), and the factors are balanced, `U^T U = V^T V = S`.

    Beyond full rank a balanced start has nothing to put into the further columns: where `U^T U = V^T V`, both vanish on
    the same `r - min(m, n)` directions of the inner space, whatever basis hides that, and under SGD they stay there. So
    half of these directions get a random column of `U`, the other half one of `V`, and an orthogonal matrix mixes all
    directions. The product is still `W`, every column learns from the first step on, and the certificate of balance is
    off by a known amount: the relative gap of `rankwise.balance` is `fill / (1 + fill)`.

    Arguments:
        values: keep the singular values, or set those that are kept to one ("ones").
        spread: with inner factors, `S^{1/L}` in each of the `L` factors ("even"), or `S^{1/2}` at the ends and
            identities between them ("ends", as the paper has it).
        noise: standard deviation of what is added to the inner factors.
        fill: squared norm of the columns beyond full rank, as a share of the others'. 0 leaves them zero, and dead.
        draw: fills the dense weight to start from, such as `torch.nn.init.kaiming_normal_`. By default a layer made
            from a dense one starts from the weight that this has, and a new layer from the dense layer's own draw.
    """

    values: Literal["kept", "ones"] = "kept"
    spread: Literal["even", "ends"] = "even"
    noise: float = 0.0
    fill: float = 0.1
    draw: Draw | None = None

    def __post_init__(self) -> None:
        if self.values not in ("kept", "ones"):
            raise UserError(f"Spectral takes values='kept' or 'ones', got {self.values!r}")
        if self.spread not in ("even", "ends"):
            raise UserError(f"Spectral takes spread='even' or 'ends', got {self.spread!r}")
        if not (self.noise >= 0 and self.fill >= 0):
            raise UserError(f"Spectral takes noise and fill of at least 0, got {self.noise} and {self.fill}")


Init = Spectral | Draw | Literal["spectral", "ones"]
"""How factors start: spectrally, or by a function that fills each of them for itself."""


def checked_init(init: Init) -> Spectral | Draw:
    """What a short name stands for, or one line that lists what may be given."""
    if init == "spectral":
        return Spectral()
    if init == "ones":
        return Spectral(values="ones")
    if not isinstance(init, Spectral) and not callable(init):
        raise UserError(
            f"init must be 'spectral', 'ones', rankwise.Spectral(...) or a function that fills a factor in place, such "
            f"as torch.nn.init.kaiming_normal_, got {init!r}"
        )
    return init


def check_rank(rank: int, shape: tuple[int, int], *, overcomplete: bool) -> None:
    """Refuse a rank that is none, or that is above the limit of a matrix without having been asked for."""
    limit = min(shape)
    if isinstance(rank, bool) or not isinstance(rank, int):
        raise UserError(f"rank must be a whole number, got {rank!r}")
    if rank < 1:
        raise UserError(f"rank must be at least 1, got {rank}")
    if rank > limit and not overcomplete:
        raise UserError(
            f"rank {rank} is above {limit}, the largest rank of a {shape[0]}x{shape[1]} matrix: give "
            f"overcomplete=True for a wide layer, or a rank of at most {limit}"
        )


@torch.no_grad()
def spectral_factors(
    dense: Float[Tensor, "m n"], rank: int, *, inner: int = 0, settings: Spectral | None = None
) -> tuple[Tensor, ...]:
    """Factors of the best approximation of a matrix, balanced: `[m, r]`, inner ones `[r, r]`, and `[r, n]`.

    Arguments:
        dense: the matrix; its singular vectors are computed in float64.
        rank: the width of the factors; above `min(m, n)` the further columns are filled as `Spectral` says.
        inner: how many factors stand between the first and the last.
        settings: the variant; its `draw` has no say here, since the matrix is given.

    Returns:
        Factors in the type of the matrix.

    >>> left, right = spectral_factors(torch.diag(torch.tensor([4.0, 1.0])), 1)
    >>> (left @ right).tolist()
    [[4.0, 0.0], [0.0, 0.0]]
    """
    settings = settings or Spectral()
    if dense.device.type == "meta":
        return tuple(dense.new_empty(size) for size in factor_shapes(dense.shape[0], dense.shape[1], rank, inner))
    kept = min(rank, *dense.shape)
    decomposition = guarded(thin_svd, dense.double())
    if decomposition.failures:
        raise UserError(f"a weight of shape {tuple(dense.shape)} has no spectral start: {decomposition.failures[0]}")
    left, values, right = decomposition.outputs
    left, values, right = left[:, :kept], values[:kept], right[:kept]
    if settings.values == "ones":
        values = torch.ones_like(values)
    depth = inner + 2
    share = values ** (1 / depth) if settings.spread == "even" else values.sqrt()
    middle = share if settings.spread == "even" else torch.ones_like(share)
    left, right = left * share, share[:, None] * right
    if rank > kept:
        extra = rank - kept
        left, right = _filled(left, right, extra, settings.fill)
        middle = torch.cat([middle, middle.mean().expand(extra)])
    chain = [left, *[torch.diag(middle)] * inner, right]
    if rank > kept and settings.fill > 0:
        turn = _rotation(rank, like=left)
        chain = [chain[0] @ turn, *(turn.mT @ factor @ turn for factor in chain[1:-1]), turn.mT @ chain[-1]]
    if settings.noise > 0:
        chain[1:-1] = [factor + settings.noise * torch.randn_like(factor) for factor in chain[1:-1]]
    return tuple(factor.to(dense.dtype).contiguous() for factor in chain)


@torch.no_grad()
def initial_factors(dense: Float[Tensor, "m n"], rank: int, *, inner: int, init: Spectral | Draw) -> tuple[Tensor, ...]:
    """The factors that a layer starts with: from its dense weight, or each filled by a function of its own."""
    if isinstance(init, Spectral):
        return spectral_factors(dense, rank, inner=inner, settings=init)
    factors = tuple(dense.new_empty(size) for size in factor_shapes(dense.shape[0], dense.shape[1], rank, inner))
    for factor in factors:
        init(factor)
    return factors


def factor_shapes(rows: int, columns: int, rank: int, inner: int) -> list[tuple[int, int]]:
    """The shapes of the factors from left to right.

    >>> factor_shapes(8, 6, 2, 1)
    [(8, 2), (2, 2), (2, 6)]
    """
    return [(rows, rank), *[(rank, rank)] * inner, (rank, columns)]


def _filled(left: Tensor, right: Tensor, extra: int, fill: float) -> tuple[Tensor, Tensor]:
    """Both ends with further directions, half of them random in the left and zero in the right, half the reverse."""
    in_left = (extra + 1) // 2
    # An even share of the whole fill for every direction, whichever side it is on.
    length = (fill * (left.square().sum() + right.square().sum()) / extra).sqrt()
    left_columns, right_rows = left.new_zeros(left.shape[0], extra), right.new_zeros(extra, right.shape[1])
    left_columns[:, :in_left] = length * nn.functional.normalize(torch.randn_like(left_columns[:, :in_left]), dim=0)
    right_rows[in_left:] = length * nn.functional.normalize(torch.randn_like(right_rows[in_left:]), dim=1)
    return torch.cat([left, left_columns], 1), torch.cat([right, right_rows], 0)


def _rotation(size: int, *, like: Tensor) -> Tensor:
    """An orthogonal matrix that mixes all directions: cosines, with random signs.

    Unlike one that is drawn uniformly it needs no decomposition, which for a wide layer would cost more than its start.
    """
    index = torch.arange(size, dtype=like.dtype, device=like.device)
    cosines = torch.cos(torch.pi / size * (index[:, None] + 0.5) * index) * (2 / size) ** 0.5
    cosines[:, 0] /= 2**0.5
    signs = torch.randint(0, 2, (size, 1), device=like.device).to(like.dtype) * 2 - 1
    return signs * cosines
