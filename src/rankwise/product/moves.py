"""The gauge moves that balance a product: an invertible matrix for one factor, and its inverse for the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.arithmetic import computes
from rankwise.product.balance import check_own_factors
from rankwise.product.bounds import UNIT, column_lengths, frobenius_norm
from rankwise.product.guarded import guarded, thin_svd
from rankwise.product.product import Product
from rankwise.product.scaling import equilibration

if TYPE_CHECKING:
    from jaxtyping import Float, Int

# A singular value below this many units of roundoff of |A| |B| is no direction that the two factors share.
ZERO_ROUNDOFFS = 64.0
# Columns that have to be scaled by more than this are, by powers of two, before anything is decomposed.
UNEVEN = 2.0**8
# Balancing goes from junction to junction until no move stretches anything by more than this.
BALANCED = 1e-12
MOST_SWEEPS = 100


@dataclass(frozen=True)
class Move:
    """`A -> A G` and `B -> G^{-1} B` for every matrix of a stack, in float64: the product stays.

    Gradients, and whatever is linear in them, go the other way: `dA -> dA G^{-T}` and `dB -> G^T dB`.

    Arguments:
        matrix: `G`.
        inverse: `G^{-1}`.
        live: how many directions the two factors share; directions that one of them lacks are left as they are.
        stretch: by how much the move stretches or shrinks a direction at most, 0 for the identity.
    """

    matrix: Float[Tensor, "*batch r r"]
    inverse: Float[Tensor, "*batch r r"] = field(kw_only=True)
    live: Int[Tensor, "*batch"] = field(kw_only=True)
    stretch: Float[Tensor, "*batch"] = field(kw_only=True)

    def then(self, other: Move) -> Move:
        """This move and another one after it."""
        # Neither stretches by more than its share, so that together they stretch by at most the product of both.
        stretch = (1 + self.stretch) * (1 + other.stretch) - 1
        inverse = other.inverse @ self.inverse
        return Move(self.matrix @ other.matrix, inverse=inverse, live=other.live, stretch=stretch)

    @property
    def is_diagonal(self) -> bool:
        """Whether it only scales the inner dimensions, so that squares of gradients follow it exactly."""
        return bool((self.matrix - torch.diag_embed(self.matrix.diagonal(dim1=-2, dim2=-1)) == 0).all())


@computes
@torch.no_grad()
def balancing_move(product: Product) -> Move:
    """The symmetric move after which `A^T A = B B^T`, the identity where they are equal already.

    With `A B = U S V^T`, `M = B V S^{-1/2}` has the inverse `S^{-1/2} U^T A` and makes both factors balanced; its
    symmetric part `G = (M M^T)^{1/2}`, the geometric mean of `(A^T A)^{-1}` and `B B^T`, does so without turning
    anything. The half-sum of squared norms falls by the gap of `balance`.

    Directions that only one factor has (those of a LoRA that starts at `B = 0`) cannot be balanced by a move: it would
    shrink them to nothing, and no gradient would ever bring them back. They stay as they are.

    Arguments:
        product: two factors of one batch shape; see `concatenated` for factors that a group shares.

    >>> move = balancing_move(Product(torch.tensor([[4.0]]), torch.tensor([[1.0]])))
    >>> move.matrix.item(), move.inverse.item()
    (0.5, 2.0)
    """
    left, right = _two(product)
    lengths = column_lengths(left), column_lengths(right.mT)
    scale, inverse_scale = equilibration(*lengths)
    alive = scale > 0
    uneven = (torch.where(alive, torch.maximum(scale, inverse_scale), 1.0).amax(-1) > UNEVEN)[..., None]
    scale = torch.where(uneven & alive, scale, 1.0)
    inverse_scale = torch.where(uneven & alive, inverse_scale, 1.0)
    left, right = left * scale[..., None, :], right * inverse_scale[..., None]

    left_core = torch.linalg.qr(left, mode="r").R
    right_core = torch.linalg.qr(right.mT, mode="r").R
    decomposition = guarded(thin_svd, left_core @ right_core.mT)
    if decomposition.failures:
        raise UserError(f"{product!r} cannot be balanced: {next(iter(decomposition.failures.values()))}")
    left_vectors, values, right_vectors = decomposition.outputs
    size = left.shape[-1]
    threshold = ZERO_ROUNDOFFS * UNIT * frobenius_norm(left_core) * frobenius_norm(right_core)
    live = (values > threshold[..., None]).sum(-1)
    roots = torch.where(values > threshold[..., None], values, torch.inf).rsqrt()
    move = right_core.mT @ right_vectors.mT * roots[..., None, :]
    back = (left_vectors * roots[..., None, :]).mT @ left_core
    if bool((live < size).any()):
        move, back = _completed(move, back, live, size)
    turn, stretches, _ = torch.linalg.svd(move)
    matrix, inverse = ((turn * one[..., None, :]) @ turn.mT for one in (stretches, 1 / stretches))
    matrix, inverse = scale[..., :, None] * matrix, inverse * inverse_scale[..., None, :]
    spread = torch.maximum(stretches, 1 / stretches).amax(-1)
    uneven_spread = torch.maximum(scale, inverse_scale).amax(-1)
    return Move(matrix, inverse=inverse, live=live, stretch=spread * uneven_spread - 1)


@computes
@torch.no_grad()
def balancing_moves(product: Product) -> tuple[Move, ...]:
    """One move for each junction of a chain, after which all neighbours are balanced: `A_l -> G_{l-1}^{-1} A_l G_l`.

    Junction by junction two neighbours are balanced; each step lowers the sum of squared norms, until none changes
    anything. It ends at `sum_l |A_l|_F^2 = L sum_i s_i^(2/L)` for `L` factors (see `chain_balance`).

    >>> chain = Product(torch.tensor([[8.0]]), torch.tensor([[1.0]]), torch.tensor([[1.0]]))
    >>> [round(move.matrix.item(), 6) for move in balancing_moves(chain)]
    [0.25, 0.5]
    """
    check_own_factors(product)
    factors = [factor.detach().double() for factor in product.factors]
    total: list[Move] = []
    for sweep in range(MOST_SWEEPS):
        largest = 0.0
        for place in range(product.depth - 1):
            move = balancing_move(Product(*factors[place : place + 2]))
            factors[place] = factors[place] @ move.matrix
            factors[place + 1] = move.inverse @ factors[place + 1]
            largest = max(largest, float(move.stretch.max()))
            if sweep == 0:
                total.append(move)
            else:
                total[place] = total[place].then(move)
        if largest <= BALANCED or product.depth == 2:
            break
    return tuple(total)


@computes
@torch.no_grad()
def pair_move(product: Product, pairs: Int[Tensor, "pairs 2"]) -> Move:
    """The move that rotary dimensions allow: a scale for each pair, and any matrix on the dimensions that do not turn.

    Afterwards `|Q_p|_F = |K_p|_F` for every pair, and the unrotated block is balanced. Pairs of which one side is zero
    are left alone.

    Arguments:
        product: queries as the left factor, keys as the right one, of one batch shape.
        pairs: the two dimensions of each pair.

    >>> move = pair_move(Product(torch.diag(torch.tensor([4.0, 4.0, 9.0])), torch.eye(3)), torch.tensor([[0, 1]]))
    >>> move.matrix.diagonal().tolist()
    [0.5, 0.5, 0.3333333333333333]
    """
    left, right = _two(product)
    size = left.shape[-1]
    pairs = pairs.to(left.device)
    norms = [frobenius_norm(one[..., pairs].movedim(-2, -3)) for one in (left, right.mT)]
    usable = (norms[0] > 0) & (norms[1] > 0)
    share = torch.where(usable, norms[1] / torch.where(usable, norms[0], 1.0), 1.0).sqrt()
    diagonal = share.new_ones((*share.shape[:-1], size))
    diagonal[..., pairs] = share[..., None].expand(*share.shape, 2)
    matrix, inverse = torch.diag_embed(diagonal), torch.diag_embed(1 / diagonal)
    stretch = torch.maximum(share, 1 / share).amax(-1) - 1
    live = 2 * usable.sum(-1)
    still = torch.ones(size, dtype=torch.bool, device=left.device)
    still[pairs.flatten()] = False
    if bool(still.any()):
        rest = still.nonzero().flatten()
        inner = balancing_move(Product(left[..., rest], right[..., rest, :]))
        matrix[..., rest[:, None], rest], inverse[..., rest[:, None], rest] = inner.matrix, inner.inverse
        live, stretch = live + inner.live, torch.maximum(stretch, inner.stretch)
    return Move(matrix, inverse=inverse, live=live, stretch=stretch)


@computes
@torch.no_grad()
def scale_move(product: Product) -> Move:
    """One number for each matrix, after which both factors have the same Frobenius norm; 1 where one of them is zero.

    >>> scale_move(Product(torch.full((1, 2), 4.0), torch.ones(2, 1))).matrix.tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    left, right = _two(product)
    norms = frobenius_norm(left), frobenius_norm(right)
    usable = (norms[0] > 0) & (norms[1] > 0)
    share = torch.where(usable, norms[1] / torch.where(usable, norms[0], 1.0), 1.0).sqrt()
    identity = torch.eye(left.shape[-1], dtype=torch.float64, device=left.device)
    return Move(
        identity * share[..., None, None],
        inverse=identity / share[..., None, None],
        live=torch.where(usable, left.shape[-1], 0),
        stretch=torch.maximum(share, 1 / share) - 1,
    )


def _two(product: Product) -> tuple[Tensor, Tensor]:
    """Both factors in float64, with the batch of the product."""
    check_own_factors(product)
    if product.depth != 2:
        raise UserError(f"a balancing move goes between two factors, {product!r} has {product.depth}")
    left, right = (factor.detach().double() for factor in product.factors)
    if left.shape[:-2] != right.shape[:-2]:
        raise UserError(
            f"the factors of {product!r} have batch shapes {tuple(left.shape[:-2])} and {tuple(right.shape[:-2])}: "
            "stack what a group shares with concatenated(p, group) first"
        )
    return left, right


def _completed(move: Tensor, back: Tensor, live: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Moves and inverses filled up to full size where the product has fewer directions than the factors are wide.

    What the live directions leave, `ker(U^T A)`, gets an orthonormal basis, so that neither factor grows there.
    """
    batch = live.shape
    moves, backs = (one.new_zeros((live.numel(), size, size)) for one in (move, back))
    identity = torch.eye(size, dtype=move.dtype, device=move.device)
    flat = (live.flatten().tolist(), move.reshape(-1, *move.shape[-2:]), back.reshape(-1, *back.shape[-2:]))
    for place, (count, one, other) in enumerate(zip(*flat, strict=True)):
        if count == 0:
            moves[place] = backs[place] = identity
            continue
        one, other = one[:, :count], other[:count]
        rest = torch.linalg.svd(other, full_matrices=True).Vh[count:].mT
        moves[place] = torch.cat([one, rest], 1)
        backs[place] = torch.cat([other, rest.mT @ (identity - one @ other)], 0)
    return moves.reshape(*batch, size, size), backs.reshape(*batch, size, size)
