"""The gap is half a squared Bures distance, and lies between its bounds, whatever the factors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.theory import gap_bounds


@st.composite
def factors(draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Rectangular, ill-scaled and rank-deficient pairs."""
    m, r, n = (draw(st.integers(1, 7)) for _ in range(3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    left, right = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((m, r), (r, n)))
    scales = 10.0 ** torch.tensor([draw(st.integers(-3, 3)) for _ in range(r)], dtype=torch.float64)
    left = left * scales
    left[:, : draw(st.integers(0, r))] = 0.0
    return left, right


@given(factors())
@settings(max_examples=120, deadline=None)
def test_the_gap_is_half_a_bures_distance_between_its_bounds(pair) -> None:
    found = gap_bounds(*pair)
    assert found.holds
    size = sum(float(one.square().sum()) for one in pair)
    # The root of a Gram matrix loses half the digits of what is small in it.
    assert found.gap.error <= 1e-6 * (float(found.gap.predicted.abs()) + 1e-2 * size)
    assert float(found.upper) <= float(found.paper) * (1 + 1e-9) + 1e-12 * size


def test_scalars_touch_the_lower_bound_and_one_factor_alone_the_upper() -> None:
    scalars = gap_bounds(torch.tensor([[3.0]]), torch.tensor([[1.0]]))
    assert scalars.lower.item() == pytest.approx(scalars.gap.simulated.item(), rel=1e-12) == pytest.approx(2.0)
    alone = gap_bounds(torch.randn(4, 3), torch.zeros(3, 5))
    assert alone.upper.item() == pytest.approx(alone.gap.simulated.item(), rel=1e-12)


def test_the_paper_bound_is_weaker_and_falls_half_as_fast() -> None:
    generator = torch.Generator().manual_seed(0)
    right = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(5, 5, generator=generator, dtype=torch.float64)).Q
    near = [gap_bounds((1 + eps) * (right @ turn).mT, right) for eps in (1e-2, 1e-4)]
    uppers, papers = ([float(one.upper) for one in near], [float(one.paper) for one in near])
    assert uppers[0] / uppers[1] == pytest.approx(100, rel=0.02)
    assert papers[0] / papers[1] == pytest.approx(10, rel=0.02)


def test_stacks_are_taken_at_once() -> None:
    left, right = torch.randn(7, 4, 3), torch.randn(7, 3, 5)
    whole = gap_bounds(left, right)
    each = torch.stack([gap_bounds(one, two).gap.simulated for one, two in zip(left, right, strict=True)])
    assert torch.allclose(whole.gap.simulated, each, rtol=1e-10)
