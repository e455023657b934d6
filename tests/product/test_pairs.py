"""Rotary pairs: layouts, the pair sum, and what is conserved when frequencies turn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.balance import balance
from rankwise.product.pairs import RotaryPairs, pair_balance, pair_balanced
from rankwise.product.product import Product
from tests.product.draws import frame, gaussian

layouts = st.sampled_from(["half", "interleaved"])


def turned(head: Tensor, pairs: Tensor, angles: Tensor) -> Tensor:
    """The columns of every pair, turned by its angle."""
    one, two = head[..., pairs[:, 0]], head[..., pairs[:, 1]]
    result = head.clone()
    result[..., pairs[:, 0]] = one * angles.cos() - two * angles.sin()
    result[..., pairs[:, 1]] = one * angles.sin() + two * angles.cos()
    return result


def test_layouts_name_the_pairs() -> None:
    assert RotaryPairs("half").indices(6).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert RotaryPairs("interleaved").indices(6).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert RotaryPairs("interleaved", rotated=2).indices(6).tolist() == [[0, 1]]


@settings(max_examples=60)
@given(
    m=st.integers(1, 9),
    n=st.integers(1, 9),
    pairs=st.integers(1, 4),
    still=st.integers(0, 3),
    layout=layouts,
    seed=st.integers(0, 2**31),
)
def test_the_pair_sum_lies_between_the_nuclear_norm_and_the_half_sum(
    m: int, n: int, pairs: int, still: int, layout: str, seed: int
) -> None:
    p = gaussian((m, 2 * pairs + still, n), seed)
    report = pair_balance(p, RotaryPairs(layout, rotated=2 * pairs))
    full = balance(p)
    assert full.nuclear.item() <= report.pair_sum.item() * (1 + 1e-12)
    assert report.gap.item() == pytest.approx(
        (report.half_sum - report.pair_sum).item(), abs=1e-12 * full.half_sum.item()
    )
    assert report.half_sum.item() == pytest.approx(full.half_sum.item(), rel=1e-13)
    assert report.gap.item() <= full.gap.item() * (1 + 1e-12)
    assert (report.unrotated is None) == (still == 0)
    # It is unchanged by the turning itself, which the content product is not.
    indices = report.pairs
    angles = gaussian((1, pairs), seed + 1).left[0]
    moved = Product(turned(p.left, indices, angles), turned(p.right.mT, indices, 0.3 * angles).mT)
    again = pair_balance(moved, indices)
    torch.testing.assert_close(again.pair_sum, report.pair_sum)
    torch.testing.assert_close(again.imbalance, report.imbalance, rtol=1e-9, atol=1e-9)


def test_the_pair_sum_is_the_nuclear_norm_when_frequencies_are_orthogonal_and_proportional() -> None:
    queries, keys = frame(9, 6, 0), frame(8, 6, 1)
    strength = torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64).repeat(2)
    p = Product(queries * strength, keys.mT)
    assert pair_balance(p, RotaryPairs("half")).pair_sum.item() == pytest.approx(balance(p).nuclear.item(), rel=1e-12)
    # The other layout pairs dimensions of different strength: Cauchy and Schwarz are strict.
    assert pair_balance(p, RotaryPairs("interleaved")).pair_sum.item() > 1.01 * balance(p).nuclear.item()


def test_a_small_pair_gap_does_not_cancel() -> None:
    queries = torch.eye(4, 2, dtype=torch.float64)
    p = Product(queries * (1 + 2.0**-40), queries.mT)
    report = pair_balance(p, RotaryPairs("half"))
    assert report.gap.item() == pytest.approx(2.0**-80, rel=1e-3)
    assert report.imbalance.item() == pytest.approx(2.0**-38, rel=1e-3)


def test_balancing_pairs_drops_the_half_sum_by_the_gap_and_keeps_the_function() -> None:
    p = gaussian((9, 8, 7), 0, batch=(3,))
    rotary = RotaryPairs("half", rotated=6)
    before, moved = pair_balance(p, rotary), pair_balanced(p, rotary)
    after = pair_balance(moved, rotary)
    assert (after.pair_gap < 1e-25).all()
    drop = before.half_sum - after.half_sum
    torch.testing.assert_close(drop, before.pair_gap.sum(-1), rtol=1e-10, atol=0)
    angles = torch.tensor([0.3, 1.1, 2.0], dtype=torch.float64)
    indices = rotary.indices(8)
    for factors in (p, moved):
        logits = turned(factors.left, indices, angles) @ factors.right
        if factors is p:
            expected = logits
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)


def test_only_the_pair_law_holds_when_frequencies_turn() -> None:
    """Descent on a loss of rotated logits: pair imbalances decay as predicted, the full one does not."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    queries, keys = 0.7 * draw(6, 4), 0.5 * draw(6, 4)
    rotary = RotaryPairs("interleaved")
    indices = rotary.indices(4)
    offsets = [torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.1]), torch.tensor([2.0, 0.2])]
    targets = [draw(6, 6) for _ in offsets]
    rate, decay, steps = 1e-3, 0.3, 1500
    start = pair_balance(Product(queries, keys.mT), rotary)
    full = balance(Product(queries, keys.mT)).imbalance
    for _ in range(steps):
        queries.requires_grad_(), keys.requires_grad_()
        loss = sum(
            (turned(queries, indices, angle.double()) @ keys.mT - target).square().sum() / 2
            for angle, target in zip(offsets, targets, strict=True)
        )
        gradients = torch.autograd.grad(loss, (queries, keys))
        with torch.no_grad():
            queries = queries - rate * (gradients[0] + decay * queries)
            keys = keys - rate * (gradients[1] + decay * keys)
    end = pair_balance(Product(queries, keys.mT), rotary)
    shrink = (1 - rate * decay) ** (2 * steps)
    torch.testing.assert_close(end.imbalance, start.imbalance * shrink, rtol=0, atol=0.02 * start.imbalance.abs().max())
    wrong = balance(Product(queries, keys.mT)).imbalance - full * shrink
    assert wrong.norm() > 0.2 * full.norm()


def test_grouped_rotary_heads_balance_as_one() -> None:
    heads = gaussian((5, 4, 6), 0, batch=(2, 3))
    p = Product(heads.left, heads.right[:, :1])
    report = pair_balance(p, RotaryPairs("half"), group=1)
    assert report.imbalance.shape == (2, 2)
    queries = heads.left[0][:, :, [0, 2]].square().sum()
    keys = heads.right[0, 0][[0, 2]].square().sum()
    assert report.imbalance[0, 0].item() == pytest.approx((queries - keys).item(), rel=1e-12)


@pytest.mark.parametrize(("m", "n"), [(64, 64), (64, 200), (512, 512)])
def test_the_null_of_a_pair_is_that_of_random_factors(m: int, n: int) -> None:
    report = pair_balance(gaussian((m, 16, n), 0, batch=(60,)), RotaryPairs("half"))
    relative = 16 * report.pair_gap / (m + n) / 16
    assert relative.mean().item() == pytest.approx(report.null.mean, rel=0.2)
    assert relative.std().item() == pytest.approx(report.null.spread, rel=0.25)


def test_bad_matrices_are_marked_and_zero_keys_are_left_alone() -> None:
    p = gaussian((5, 4, 6), 0, batch=(3,))
    broken = p.left.clone()
    broken[1, 0, 0] = torch.inf
    report = pair_balance(Product(broken, p.right), RotaryPairs("half", rotated=2))
    assert list(report.failures) == [1]
    assert report.gap[[0, 2]].isfinite().all()
    assert not report.gap[1].isfinite()
    silent = Product(p.left[0], torch.zeros(4, 6, dtype=torch.float64))
    assert torch.equal(pair_balanced(silent, RotaryPairs("half")).left, silent.left)


def test_wrong_pairs_are_refused_in_one_line() -> None:
    p = gaussian((5, 4, 6), 0)
    with pytest.raises(UserError, match="'half' or 'interleaved'"):
        RotaryPairs("both")  # type: ignore[arg-type]
    for rotated in (3, 0, 6):
        with pytest.raises(UserError, match="even"):
            pair_balance(p, RotaryPairs("half", rotated=rotated))
    for pairs, word in [
        (torch.tensor([[0, 0]]), "at most once"),
        (torch.tensor([[0, 4]]), "0 to 3"),
        (torch.tensor([0, 1]), "shape"),
        (torch.tensor([[0.0, 1.0]]), "integers"),
    ]:
        with pytest.raises(UserError, match=word):
            pair_balance(p, pairs)
    with pytest.raises(UserError, match="sum or a change"):
        pair_balance(p + p, RotaryPairs("half"))
