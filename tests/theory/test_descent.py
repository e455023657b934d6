"""Raw training: Euler's laws step by step, growth rates, Adam's different clock, batches, and bad ends."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rankwise import theory
from rankwise.errors import UserError
from tests.theory.worked import LOG, everyone_stays, small_head


def sgd(rate: float):
    return lambda weights: torch.optim.SGD(weights, lr=rate)


def adam(rate: float):
    return lambda weights: torch.optim.Adam(weights, lr=rate)


def test_every_step_is_eulers() -> None:
    """`w` grows by `1 + rate g`, `u - v` by `1 - rate g`, and `u^2 - v^2` shrinks by `1 - (rate g)^2`."""
    worked, rate = everyone_stays(), 0.05
    run = theory.descend(worked.problem, optimizer=sgd(rate), log_alpha=LOG[2], start=worked.start, steps=400)
    u, v = run.weights
    growth = rate * torch.stack([worked.problem.force(one) for one in run.products[:-1]])
    torch.testing.assert_close((u + v)[1:], (u + v)[:-1] * (1 + growth), rtol=1e-9, atol=1e-15)
    torch.testing.assert_close((u - v)[1:], (u - v)[:-1] * (1 - growth), rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(run.imbalance[1:], run.imbalance[:-1] * (1 - growth.square()), rtol=1e-6, atol=1e-17)
    assert run.complete
    torch.testing.assert_close(run.times[-1].item(), 400 * rate / run.span)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
def test_discrete_growth_is_slower_by_its_logarithm(rate: float) -> None:
    problem = theory.diagonal_linear(torch.eye(1), torch.ones(1))
    path = theory.greedy(problem)
    runs = [
        theory.descend(
            problem,
            optimizer=sgd(rate),
            log_alpha=LOG[exponent],
            start=(torch.ones(1), torch.zeros(1)),
            steps=int(60 / rate),
        )
        for exponent in (6, 10)
    ]
    slope = theory.compare(path, runs).slopes[0, 0].item()
    # Crossings lie between steps: a tenth of a step over nine units of time.
    assert slope == pytest.approx(rate / math.log1p(rate), abs=0.02 * rate + 1e-4)
    if rate >= 0.1:
        assert abs(slope - 1) > 0.04


def test_small_steps_follow_the_flow() -> None:
    worked = everyone_stays()
    run = theory.descend(worked.problem, optimizer=sgd(2e-3), log_alpha=LOG[2], start=worked.start, steps=8000)
    flow = theory.flow(worked.problem, log_alpha=LOG[2], start=worked.start, until=run.times[-1].item())
    exact = flow.at(run.times.clamp(max=flow.times[-1].item())).products
    assert (run.products - exact).abs().max() < 0.02
    assert bool((run.losses().diff() < 1e-12).all())


def steps_until(run: theory.Descent, level: float) -> torch.Tensor:
    """The first step at which each product exceeds the level."""
    above = run.products.abs() > level
    assert above.any(0).all()
    return run.steps[above.int().argmax(0)]


@pytest.mark.slow
def test_adam_keeps_no_such_time() -> None:
    """Gradient descent waits longer the smaller the start, and activates one by one; Adam does neither."""
    worked = small_head()
    known_spread = {1: (12, 657), 2: (52, 1054), 4: (133, 1845), 8: (294, 3429)}
    known_adam = {1: (58, 197), 2: (126, 159), 4: (142, 166), 8: (150, 184)}
    for exponent, (first, last) in known_spread.items():
        run = theory.descend(
            worked.problem, optimizer=sgd(2.0), log_alpha=LOG[exponent], start=worked.start, steps=last + 20
        )
        found = steps_until(run, 0.05)
        assert (int(found.min()), int(found.max())) == pytest.approx((first, last), abs=2)
        run = theory.descend(
            worked.problem, optimizer=adam(1e-3), log_alpha=LOG[exponent], start=worked.start, steps=260
        )
        found = steps_until(run, 0.05)
        assert (int(found.min()), int(found.max())) == pytest.approx(known_adam[exponent], abs=2)


def test_adams_steps_are_not_a_time() -> None:
    worked = everyone_stays()
    run = theory.descend(worked.problem, optimizer=adam(0.01), log_alpha=LOG[8], start=worked.start, steps=2000)
    assert run.rate is None
    with pytest.raises(UserError, match="Adam divides by the gradient's size"):
        _ = run.times
    with pytest.raises(UserError, match="stage_steps"):
        theory.compare(worked.path, [run])
    assert run.stage_steps(worked.path)[0] < 250
    for make in (
        lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9),
        lambda w: torch.optim.SGD(w, lr=0.1, weight_decay=0.1),
        lambda w: torch.optim.SGD(w, lr=0.1, maximize=True),
        lambda w: torch.optim.SGD([{"params": [one], "lr": 0.1 + place} for place, one in enumerate(w)]),
    ):
        other = theory.descend(worked.problem, optimizer=make, log_alpha=LOG[2], start=worked.start, steps=3)
        assert other.rate is None


def test_a_large_start_is_a_kernel_and_a_small_one_is_sparse() -> None:
    """Too few samples: from far away weights hardly move and fit like kernel regression, from nearby they fit in l1."""
    draw = np.random.default_rng(3)
    inputs, targets = torch.tensor(draw.normal(size=(3, 8))), torch.tensor(draw.normal(size=3))
    problem, first = theory.regression(inputs, targets), torch.tensor(draw.uniform(0.5, 1.5, size=8))
    start, scale = (first, torch.zeros(8)), 30.0
    run = theory.descend(problem, optimizer=sgd(2e-4), log_alpha=math.log(scale), start=start, steps=600)
    with pytest.raises(UserError, match="alpha below 1"):
        _ = run.times
    assert run.losses()[-1] < 1e-20
    u, v = run.weights
    assert (torch.cat([u[-1] - u[0], v[-1]]).norm() / u[0].norm()) < 2 / scale**2
    # The network is linear in its weights: of all that fit, the one of least sum of q^2 / u0^2.
    features = inputs * first
    expected = first * (features.mT @ torch.linalg.solve(features @ features.mT, targets))
    torch.testing.assert_close(run.products[-1], expected, rtol=5 / scale**2, atol=5 / scale**2)
    sparse = theory.flow(problem, log_alpha=LOG[100], start=start, until=3 * theory.greedy(problem).times[-1].item())
    torch.testing.assert_close(sparse.products[-1], theory.basis_pursuit(inputs, targets), rtol=0, atol=1e-5)
    assert (sparse.products[-1].abs() > 1e-3).sum() <= 3
    assert (expected.abs() > 1e-3).all()


def test_records_are_kept_every_so_often_and_at_the_end() -> None:
    worked = everyone_stays()
    run = theory.descend(worked.problem, optimizer=sgd(0.1), log_alpha=-3.0, start=worked.start, steps=25, every=10)
    assert run.steps.tolist() == [0, 10, 20, 25]
    every = theory.descend(worked.problem, optimizer=sgd(0.1), log_alpha=-3.0, start=worked.start, steps=25)
    torch.testing.assert_close(run.products, every.products[run.steps], rtol=0, atol=0)


def test_batches_are_drawn_by_their_seed_and_average_to_the_whole() -> None:
    draw = np.random.default_rng(0)
    inputs = torch.tensor(draw.normal(size=(12, 3)))
    problem = theory.regression(inputs, inputs @ torch.tensor([1.0, -2.0, 0.5]).double())
    start = torch.tensor(draw.normal(size=3)), torch.tensor(draw.normal(size=3))

    def run(batch: int | None, seed: int) -> torch.Tensor:
        made = theory.descend(
            problem, optimizer=sgd(0.1), log_alpha=LOG[2], start=start, steps=600, batch=batch, seed=seed
        )
        return made.products

    torch.testing.assert_close(run(12, 0), run(None, 0), rtol=1e-9, atol=1e-12)
    assert torch.equal(run(4, 0), run(4, 0))
    assert not torch.equal(run(4, 0), run(4, 1))
    # The targets are fitted exactly, so the noise dies out with the error.
    torch.testing.assert_close(run(4, 1)[-1], torch.tensor([1.0, -2.0, 0.5]).double(), rtol=0, atol=1e-3)


def test_a_rate_that_is_too_large_ends_with_what_was_reached() -> None:
    worked = everyone_stays()
    run = theory.descend(worked.problem, optimizer=sgd(3.0), log_alpha=LOG[1], start=worked.start, steps=400)
    assert not run.complete
    assert "was the learning rate too large?" in run.reason
    assert 1 < len(run.steps) < 400


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"steps": 0}, "0 steps"),
        ({"every": 0}, "every 0"),
        ({"start": (torch.ones(2), torch.ones(2))}, "the start has 2 coordinates, the problem 5"),
        ({"batch": 3}, "no samples to draw from"),
    ],
)
def test_what_cannot_be_run(given: dict[str, object], text: str) -> None:
    worked = everyone_stays()
    whole = {"optimizer": sgd(0.1), "log_alpha": -3.0, "start": worked.start, "steps": 5} | given
    with pytest.raises(UserError, match=text):
        theory.descend(worked.problem, **whole)
    problem = theory.regression(torch.ones(4, 1), torch.ones(4))
    with pytest.raises(UserError, match="batches of 5 were asked for out of 4"):
        theory.descend(
            problem, optimizer=sgd(0.1), log_alpha=-3.0, start=(torch.ones(1), torch.zeros(1)), steps=5, batch=5
        )
