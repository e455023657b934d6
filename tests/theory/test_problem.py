"""Problems: what is asked of a gradient, derivatives that nobody gave, and problems made from others."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankwise import theory
from rankwise.errors import UserError
from rankwise.theory.coordinates import Coordinate, Pairing


def quartic(products: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(1, len(products) + 1, dtype=torch.float64)
    return (weights * products).sum().square() + (weights * (products - 1).pow(4)).sum() + products.prod()


@given(st.integers(2, 6), st.integers(0, 99), st.sampled_from([1e-3, 1.0, 1e3]))
def test_gradient_and_curvature_of_a_torch_function(size: int, seed: int, scale: float) -> None:
    at = scale * torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    problem = theory.Problem.from_loss(quartic, size=size)
    torch.testing.assert_close(problem.force(at), -torch.func.grad(quartic)(at), rtol=1e-12, atol=0)
    assert problem.value(at) == quartic(at).item()
    exact = torch.autograd.functional.hessian(quartic, at)
    rows, columns = torch.tensor([1, 0]), torch.tensor([size - 1, 0])
    torch.testing.assert_close(
        problem.hessian_block(at, rows, columns),
        exact[rows][:, columns],
        rtol=1e-6,
        atol=1e-8 * exact.abs().max().item(),
    )


def test_a_hessian_that_is_given_is_used() -> None:
    calls = []

    def hessian(products: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        calls.append(len(columns))
        return 2 * torch.eye(3, dtype=torch.float64)[rows][:, columns]

    problem = theory.Problem(size=3, gradient=lambda q: 2 * q, hessian=hessian)
    everyone = torch.arange(3)
    assert problem.hessian_block(torch.zeros(3).double(), everyone, everyone).trace() == 6
    assert calls == [3]


def test_scaled_and_decayed_problems_change_every_derivative_alike() -> None:
    inputs, targets = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).double(), torch.ones(6).double()
    base, at, everyone = theory.regression(inputs, targets), torch.tensor([1.0, -2.0, 0.5]).double(), torch.arange(3)
    few = torch.tensor([0, 4])
    for problem, loss in (
        (base.scaled(3.0), lambda q: 3 * base.value(q)),
        (base.with_decay(0.2), lambda q: base.value(q) + 0.1 * q.square().sum().item()),
    ):
        assert problem.value(at) == pytest.approx(loss(at), rel=1e-14)
        without = theory.Problem(size=3, gradient=problem.gradient)
        torch.testing.assert_close(
            problem.hessian_block(at, everyone, everyone), without.hessian_block(at, everyone, everyone)
        )
        step = 1e-6 * torch.eye(3).double()
        measured = torch.tensor([(problem.value(at + one) - problem.value(at - one)) / 2e-6 for one in step])
        torch.testing.assert_close(-problem.force(at), measured.double(), rtol=1e-6, atol=1e-8)
        assert problem.sample_gradient is not None
        whole = (problem.sample_gradient(at, torch.arange(6)) + problem.force(at)).abs().max()
        assert whole < 1e-14
        assert problem.sample_gradient(at, few).shape == (3,)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: theory.Problem(size=0, gradient=torch.zeros_like), "size 0 has no products"),
        (
            lambda: theory.Problem(
                size=2,
                gradient=torch.zeros_like,
                coordinates=[Coordinate(layer=0, head=0, pairing=Pairing.QK, channel=0)],
            ),
            "1 coordinates were named for 2 products",
        ),
        (lambda: theory.Problem(size=2, gradient=torch.zeros_like, samples=3), "belong together"),
        (lambda: theory.Problem(size=2, gradient=torch.zeros_like).with_decay(-1.0), "decay of -1.0"),
        (lambda: theory.Problem(size=2, gradient=torch.zeros_like).scaled(0.0), "multiplied by 0.0"),
    ],
)
def test_what_makes_no_problem_is_refused(make, text: str) -> None:
    with pytest.raises(UserError, match=text):
        make()


def test_gradients_of_a_wrong_kind_are_refused() -> None:
    zero = torch.zeros(2).double()
    with pytest.raises(UserError, match=r"torch.float32 of shape \(2,\), expected torch.float64"):
        theory.Problem(size=2, gradient=lambda q: q.float()).force(zero)
    with pytest.raises(UserError, match=r"of shape \(1,\), expected torch.float64 of shape \(2,\)"):
        theory.Problem(size=2, gradient=lambda q: q[:1]).force(zero)


def test_a_gradient_that_is_not_finite_names_the_coordinate() -> None:
    place = Coordinate(layer=1, head=2, pairing=Pairing.VO, channel=0)
    problem = theory.Problem(size=2, gradient=lambda q: q / q, coordinates=[place, place])
    with pytest.raises(theory.NotFinite, match=r"coordinate 0 \(layer 1 head 2 VO 0\) is nan \(2 of 2"):
        problem.force(torch.zeros(2).double())
    # Infinities of both signs do not cancel.
    opposite = theory.Problem(size=2, gradient=lambda q: torch.tensor([math.inf, -math.inf]).double())
    with pytest.raises(theory.NotFinite, match="is inf"):
        opposite.force(torch.zeros(2).double())
    # Large numbers whose sum overflows are finite.
    huge = theory.Problem(size=2, gradient=lambda q: torch.tensor([1.7e308, 1.7e308], dtype=torch.float64))
    assert huge.force(torch.zeros(2).double()).isfinite().all()
