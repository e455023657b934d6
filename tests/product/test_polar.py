"""Newton-Schulz against decompositions: polar factors, the gradient of the nuclear norm, and constant shrinking."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankwise.product.multipliers import multipliers
from rankwise.product.penalties import nuclear_penalty
from rankwise.product.polar import nuclear_at_junction, polar_factor, scalings, shrinking
from rankwise.product.product import Product
from tests.product.draws import frame, gaussian, with_values


def errors(product: Product) -> list[float]:
    """The relative error of each factor's gradient, against the form by singular value decomposition."""
    left, right = (factor.clone().requires_grad_() for factor in product.factors)
    nuclear_penalty(Product(left, right)).sum().backward()
    with torch.no_grad():
        found = multipliers(left.mT @ left, (), right @ right.mT, nuclear_at_junction)
        pairs = ((left @ found.first, left.grad), (found.last @ right, right.grad))
        return [float((one - two).norm() / two.norm()) for one, two in pairs]


@settings(max_examples=40)
@given(
    rows=st.integers(1, 8),
    columns=st.integers(1, 8),
    seed=st.integers(0, 2**31),
    size=st.sampled_from([1e-20, 1.0, 1e20]),
)
def test_polar_factor_is_that_of_the_svd(rows: int, columns: int, seed: int, size: float) -> None:
    matrix = gaussian((max(rows, columns), min(rows, columns)), seed, batch=(2,)).left
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    found = polar_factor(size * matrix)
    clear = s[:, -1] > 1e-4 * s[:, 0]
    assert (found - u @ vh)[clear].abs().amax().item() < 1e-9 if clear.any() else True


def test_steps_take_every_value_down_to_the_floor_to_one_and_no_further() -> None:
    values = torch.logspace(-6, 0, 200, dtype=torch.float64)
    for scale in scalings(1e-6):
        values = scale * values * (3 - scale**2 * values**2) / 2
        assert values.max() <= 1 + 1e-15
    assert values.min() > 1 - 1e-14


@pytest.mark.parametrize("batch", [(), (4,)])
def test_gradient_is_that_of_the_svd(batch: tuple[int, ...]) -> None:
    assert max(errors(gaussian((30, 8, 20), 0, batch=batch))) < 1e-11


@pytest.mark.parametrize("decades", [1, 3, 5])
def test_gradient_of_ill_conditioned_products_in_any_gauge(decades: int) -> None:
    values = torch.logspace(0, -decades, 8).tolist()
    product = with_values(values, 30, 20, 0)
    assert max(errors(product)) < 1e-12
    stretch = torch.logspace(-4, 4, 8, dtype=torch.float64)
    assert max(errors(Product(product.left * stretch, product.right / stretch[:, None]))) < 1e-10
    turn = gaussian((8, 8), 5).left
    assert max(errors(Product(product.left @ turn, torch.linalg.solve(turn, product.right)))) < 1e-8


def test_deficient_cores_leave_their_null_directions_out() -> None:
    """The subgradient of least norm, as the decomposition takes it; within what the shift of a Gram leaves."""
    thin = frame(30, 3, 0) @ gaussian((3, 8), 1).left
    wide = gaussian((8, 20), 2).left
    assert max(errors(Product(thin, wide))) < 1e-6
    assert max(errors(Product(wide.mT, thin.mT))) < 1e-6
    left, right = gaussian((30, 8), 3).left, gaussian((8, 20), 4).left
    left[:, 5:] = 0
    right[:2] = 0
    assert max(errors(Product(left, right))) < 1e-6


def test_a_zero_factor_has_no_gradient_and_its_partner_none_either() -> None:
    """As LoRA starts: everything finite, nothing moves, also in float32."""
    zero, other = torch.zeros(5, 4, dtype=torch.float64), gaussian((4, 6), 0).left
    for left, right in ((zero, other), (other.mT, zero.mT), (zero, zero.mT)):
        last, first = (each.float() for each in nuclear_at_junction(left.mT @ left, right @ right.mT))
        assert first.isfinite().all()
        assert last.isfinite().all()
        assert (left.float() @ first).abs().max() < 1e-30
        assert (last @ right.float()).abs().max() < 1e-30
        moved = shrinking(left.mT @ left, right @ right.mT, 0.1)
        assert moved.isfinite().all()
        assert (left @ moved).abs().max() < 1e-30
        assert (moved @ right).abs().max() < 1e-30


def test_what_is_not_finite_shows() -> None:
    bad = torch.full((3, 3), torch.nan, dtype=torch.float64)
    good = torch.eye(3, dtype=torch.float64)
    last, first = nuclear_at_junction(torch.stack([bad, good]), torch.stack([good, good]))
    assert first[0].isnan().any()
    assert last[0].isnan().any()
    torch.testing.assert_close(first[1], good)


@pytest.mark.parametrize("least", [0.0, 0.01, 0.5])
def test_shrinking_takes_the_same_from_every_singular_value(least: float) -> None:
    values = torch.tensor([4.0, 2.0, 1.0, 0.3], dtype=torch.float64)
    product = with_values(values.tolist(), 12, 9, 0)
    turn = gaussian((4, 4), 5).left
    left, right = product.left @ turn, torch.linalg.solve(turn, product.right)
    small = shrinking(left.mT @ left, right @ right.mT, least)
    shrunk = torch.linalg.svdvals(left @ (torch.eye(4).double() - 0.1 * small) @ right)[:4]
    wanted = values - 0.1 * values**2 / (values**2 + least**2)
    # Without a least value it is a small share of the factors' sizes, which only the smallest value feels.
    torch.testing.assert_close(shrunk, wanted, rtol=1e-3 if not least else 1e-9, atol=0)


def test_shrinking_never_turns_a_value_around() -> None:
    """With `e = a / 2` and half of it on either side, no value below `a` overshoots zero."""
    values: Tensor = torch.logspace(-6, 0, 40, dtype=torch.float64)
    step = 0.05
    small = torch.stack([shrinking(v.reshape(1, 1), v.reshape(1, 1), step / 2) for v in values]).flatten()
    assert ((1 - step / 2 * small) > 0).all()
