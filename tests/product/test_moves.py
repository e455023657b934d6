"""Moves that balance keep the product, drop the half-sum by the gap, and are the identity where nothing is to do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import UserError
from rankwise.product.balance import balance
from rankwise.product.chain_balance import chain_balance
from rankwise.product.moves import Move, balancing_move, balancing_moves, pair_move, scale_move
from rankwise.product.pairs import pair_balance
from rankwise.product.product import Product
from tests.product.draws import frame, gaussian

seeds = st.integers(0, 2**31)


def moved(product: Product, move: Move) -> Product:
    return Product(product.left @ move.matrix, move.inverse @ product.right)


def gauged(m: int, r: int, n: int, seed: int, *, spread: float = 1.0) -> Product:
    """A random product in a random gauge that stretches directions by up to `10^spread` either way."""
    p = gaussian((m, r, n), seed, batch=(2,))
    stretch = 10 ** torch.linspace(-spread, spread, r, dtype=torch.float64)
    gauge = frame(r, r, seed + 1) * stretch @ frame(r, r, seed + 2).mT
    return Product(p.left @ gauge, torch.linalg.solve(gauge, p.right))


def assert_same(one: Product, two: Product, tolerance: float = 1e-11) -> None:
    scale = max(two.dense().abs().max().item(), 1e-30)
    torch.testing.assert_close(one.dense(), two.dense(), rtol=0, atol=tolerance * scale)


@settings(max_examples=60)
@given(m=st.integers(1, 9), r=st.integers(1, 7), n=st.integers(1, 9), seed=seeds)
def test_the_product_stays_and_the_half_sum_falls(m: int, r: int, n: int, seed: int) -> None:
    p = gaussian((m, r, n), seed, batch=(2,))
    move = balancing_move(p)
    torch.testing.assert_close(move.matrix @ move.inverse, torch.eye(r, dtype=torch.float64).expand(2, r, r))
    after, before = moved(p, move), balance(p)
    assert_same(after, p, 1e-9)
    dropped = before.half_sum - balance(after).half_sum
    assert (dropped >= -1e-9 * before.half_sum).all()
    if r <= min(m, n):
        torch.testing.assert_close(dropped, before.gap, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_a_bad_gauge_balances_to_rounding(spread: float) -> None:
    p = gauged(20, 6, 15, 3, spread=spread)
    assert balance(p).relative.min() > (0.1 if spread else 0.0)
    after = moved(p, balancing_move(p))
    # A gauge of condition 1e6 stores the product itself to no more than ten digits.
    assert_same(after, p, 1e-9)
    assert balance(after).relative.max().item() < 1e-20


def test_very_uneven_columns_are_no_trouble() -> None:
    p = gaussian((20, 4, 15), 1)
    scale = torch.tensor([1e120, 1e-120, 1e9, 1.0], dtype=torch.float64)
    after = moved(
        Product(p.left * scale, p.right / scale[:, None]),
        balancing_move(Product(p.left * scale, p.right / scale[:, None])),
    )
    assert_same(after, p)
    assert balance(after).relative.item() < 1e-20


@settings(max_examples=25)
@given(seed=seeds)
def test_a_balanced_product_is_not_touched(seed: int) -> None:
    """The move is the symmetric one: it turns nothing, so that balancing twice is balancing once."""
    p = gauged(9, 4, 8, seed).balanced()
    turn = frame(4, 4, seed)
    turned = Product(p.left @ turn, turn.mT @ p.right)
    move = balancing_move(turned)
    assert move.stretch.max().item() < 1e-12
    torch.testing.assert_close(move.matrix, torch.eye(4, dtype=torch.float64).expand(2, 4, 4))
    assert not balancing_move(gauged(9, 4, 8, seed)).is_diagonal


@pytest.mark.parametrize("dead", ["left", "right"])
def test_directions_that_one_factor_lacks_stay_as_they_are(dead: str) -> None:
    """A LoRA whose B has learned one direction of four: the other three of A must not shrink, or they never learn."""
    p = gaussian((10, 4, 12), 5)
    narrow = p.left.clone()
    narrow[:, 1:] = 0
    p = Product(narrow, p.right) if dead == "left" else Product(narrow, p.right).T
    move = balancing_move(p)
    assert move.live.item() == 1
    after = moved(p, move)
    assert_same(after, p)
    other = after.right if dead == "left" else after.left.mT
    before = p.right if dead == "left" else p.left.mT
    assert torch.linalg.matrix_rank(other) == 4
    # The live direction has its fair share; what is left of the others is no longer than it was, and not nothing.
    values = torch.linalg.svdvals(other)
    assert values[-1].item() > 0.1 * torch.linalg.svdvals(before)[-1].item()
    assert other.square().sum().item() < before.square().sum().item()


def test_a_product_that_is_zero_is_left_alone() -> None:
    p = Product(torch.zeros(2, 5, 3), torch.randn(2, 3, 4))
    move = balancing_move(p)
    assert move.live.tolist() == [0, 0]
    assert (move.matrix == torch.eye(3)).all()
    assert (move.inverse == torch.eye(3)).all()
    assert move.stretch.tolist() == [0, 0]


@settings(max_examples=30)
@given(seed=seeds, unrotated=st.integers(0, 3))
def test_rotary_pairs_are_scaled_and_what_stands_still_is_balanced(seed: int, unrotated: int) -> None:
    pairs = torch.tensor([[0, 2], [1, 3]])
    p = gauged(9, 4 + unrotated, 8, seed)
    move = pair_move(p, pairs)
    after, before = moved(p, move), pair_balance(p, pairs)
    assert_same(after, p, 1e-10)
    certificate = pair_balance(after, pairs)
    assert (certificate.relative < 1e-18).all()
    torch.testing.assert_close(certificate.half_sum, before.pair_sum, rtol=1e-9, atol=0)
    assert move.is_diagonal == (unrotated <= 1)
    # It commutes with every turn of the pairs, and would not if it were a general matrix.
    angle = torch.eye(4 + unrotated, dtype=torch.float64)
    for one, two in pairs.tolist():
        angle[one, one] = angle[two, two] = 0.6
        angle[one, two], angle[two, one] = -0.8, 0.8
    torch.testing.assert_close(move.matrix @ angle, angle @ move.matrix)


@pytest.mark.parametrize("widths", [(7, 4, 4, 6), (8, 3, 3, 3, 5), (5, 9, 9, 6), (4, 2, 3)])
def test_a_chain_balances_at_every_junction(widths: tuple[int, ...]) -> None:
    p = gaussian(widths, 3) if len(widths) > 3 else gaussian(widths, 3, batch=(3,))
    p = Product(p.left * 100, *p.factors[1:])
    moves = balancing_moves(p)
    assert len(moves) == p.depth - 1
    factors = list(p.factors)
    for place, move in enumerate(moves):
        factors[place] = factors[place] @ move.matrix
        factors[place + 1] = move.inverse @ factors[place + 1]
    after = Product(*factors)
    assert_same(after, p, 1e-9)
    before, then = chain_balance(p), chain_balance(after)
    assert (then.mean_square < before.mean_square).all()
    if max(widths[1:-1]) <= min(widths):
        assert then.relative.max().item() < 1e-12
        assert max(junction.relative_imbalance.max().item() for junction in then.junctions) < 1e-10


def test_one_scale_for_each_matrix() -> None:
    p = gauged(9, 4, 8, 2)
    move = scale_move(p)
    after = moved(p, move)
    assert_same(after, p)
    norms = [torch.linalg.matrix_norm(factor) for factor in after.factors]
    torch.testing.assert_close(*norms)
    assert move.is_diagonal
    zero = scale_move(Product(torch.zeros(2, 3), torch.ones(3, 2)))
    assert (zero.matrix == torch.eye(3)).all()


def test_pairs_with_a_silent_side_are_left_alone() -> None:
    p = gaussian((5, 4, 6), 0)
    silent = p.right.clone()
    silent[[0, 2]] = 0
    move = pair_move(Product(p.left, silent), torch.tensor([[0, 2], [1, 3]]))
    assert move.matrix.diagonal()[[0, 2]].tolist() == [1.0, 1.0]
    assert move.live.item() == 2


def test_what_has_no_balancing_move_is_refused() -> None:
    with pytest.raises(UserError, match="between two factors"):
        balancing_move(gaussian((4, 3, 3, 4), 0))
    with pytest.raises(UserError, match="concatenated"):
        balancing_move(Product(torch.randn(3, 5, 2), torch.randn(1, 2, 5)))
    with pytest.raises(UserError, match="NaN"):
        balancing_move(Product(torch.full((3, 2), torch.nan), torch.randn(2, 5)))
