"""Exact flows: against the raw weights, against the theorem, at initializations that have no float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate

from rankwise import theory
from rankwise.errors import UserError
from tests.theory.worked import LOG, Worked, everyone_stays, one_leaves_and_returns, small_head


def raw(worked: Worked, exponent: int, until: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same flow integrated on `(u, v)` by an explicit method: times, u, v."""
    alpha, size = 10.0**-exponent, worked.problem.size

    def slope(_: float, state: np.ndarray) -> np.ndarray:
        u, v = torch.tensor(state).chunk(2)
        force = worked.problem.force(u * v)
        return torch.cat([v * force, u * force]).numpy()

    start = alpha * torch.cat(worked.start).numpy()
    end = until * -LOG[exponent]
    answer = integrate.solve_ivp(slope, (0, end), start, method="DOP853", rtol=1e-11, atol=1e-14 * alpha)
    assert answer.success
    weights = torch.tensor(answer.y.T)
    return torch.tensor(answer.t) / -LOG[exponent], weights[:, :size], weights[:, size:]


@pytest.mark.parametrize("exponent", [1, 2, 4])
def test_it_is_the_flow_of_the_raw_weights(exponent: int) -> None:
    worked = everyone_stays()
    times, u, v = raw(worked, exponent, until=6.0)
    run = theory.flow(worked.problem, log_alpha=LOG[exponent], start=worked.start, until=6.0, tolerance=1e-11)
    inside = times <= run.times[-1]
    state = run.at(times[inside])
    torch.testing.assert_close(state.products, (u * v)[inside], rtol=0, atol=1e-8)
    for found, expected in zip(state.weights, (u, v), strict=True):
        torch.testing.assert_close(found, expected[inside], rtol=0, atol=1e-8)
    conserved = (u.square() - v.square()) / math.exp(2 * LOG[exponent])
    torch.testing.assert_close(run.conserved.expand_as(conserved), conserved, rtol=1e-4, atol=1e-4)
    found = state.weights[0].square() - state.weights[1].square()
    torch.testing.assert_close(
        found[0] / math.exp(2 * LOG[exponent]), worked.start[0].square() - worked.start[1].square()
    )


@pytest.mark.slow
def test_raw_weights_in_float64_forget_how_to_come_back() -> None:
    """The negative control: below 1e-8 the raw flow loses `u^2 - v^2`, and who left never returns."""
    worked = one_leaves_and_returns()
    expected = worked.path.products[-1, 3].item()
    for exponent, returns in ((4, True), (10, False)):
        _, u, v = raw(worked, exponent, until=28.0)
        assert (u * v)[-1, 3].item() == pytest.approx(expected if returns else 0.0, rel=0.01, abs=1e-6)
    assert worked.run(10, until=1.25).products[-1, 3].item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("worked", "exponent", "times"),
    [
        (everyone_stays, 8, (0.5190, 0.7822, 2.0090, 4.2089, 6.0732)),
        (everyone_stays, 300, (0.4900, 0.7304, 1.9676, 4.1063, 5.8388)),
        (one_leaves_and_returns, 8, (1.0470, 1.7291, 3.3209, 3.8707, 22.716)),
        (one_leaves_and_returns, 300, (1.0398, 1.7113, 3.1663, 3.6624, 22.856)),
        (small_head, 8, (33.639, 40.155, 50.387, 82.828, 90.827, 118.893, 221.393, 359.451)),
    ],
)
def test_measured_stage_times(worked, exponent: int, times: tuple[float, ...]) -> None:
    found = worked().run(exponent).stage_times(worked().path)
    # The known values were read off a grid.
    torch.testing.assert_close(found, torch.tensor(times, dtype=torch.float64), rtol=6e-4, atol=0)


@pytest.mark.parametrize(("exponents", "rtol"), [((2, 3), 1e-2), ((8, 10), 1e-3), ((100, 300), 1e-5)])
def test_slopes_are_the_predicted_times_of_the_first_problem(exponents: tuple[int, int], rtol: float) -> None:
    worked = everyone_stays()
    compared = theory.compare(worked.path, [worked.run(one, until=1.4) for one in exponents])
    assert bool((compared.slope_errors < rtol).all())


def test_slopes_of_the_others_where_their_slow_stages_are_over() -> None:
    # A product of -0.0555 relaxes slowly, so the second problem needs smaller scales than 1e-8.
    worked = one_leaves_and_returns()
    compared = theory.compare(worked.path, [worked.run(one) for one in (8, 10, 100, 300)])
    assert bool((compared.slope_errors[0, :3] < 1e-3).all())
    assert bool((compared.slope_errors[-1] < 1e-5).all())
    assert compared.slopes[-1, 4].item() == pytest.approx(22.863, abs=1e-3)
    head = small_head()
    compared = theory.compare(head.path, [head.run(one) for one in (8, 10)])
    assert bool((compared.slope_errors < 1e-3).all())


def test_the_first_stage_has_a_closed_form() -> None:
    """`t_1 = (log(1/alpha) + log(4 |q| / c) / 2 - sgn(g) y_0) / |g|` up to the end of the plateau."""
    for worked in (everyone_stays(), one_leaves_and_returns()):
        run, stage = worked.run(100), worked.path.stages[0]
        one, force = stage.coordinate, worked.path.start.force[stage.coordinate].item()
        u, v = (torch.as_tensor(weights)[one] for weights in worked.start)
        larger, smaller = (u, v) if u.abs() > v.abs() else (v, u)
        imbalance = (larger.square() - smaller.square()).item()
        plateau = abs(stage.product[one].item())
        early = math.atanh((smaller / larger).item()) * math.copysign(1, force)
        expected = (run.span + 0.5 * math.log(4 * plateau / imbalance) - early) / abs(force)
        assert run.stage_times(worked.path)[0].item() * run.span == pytest.approx(expected, abs=1e-3)


def snapshot_error(worked: Worked, exponent: int) -> tuple[float, float]:
    """In the middle of every plateau: the largest error of `u = sqrt|q|`, and of `log_alpha (u + v)`."""
    bounds = torch.cat([torch.zeros(1, dtype=torch.float64), worked.path.times])
    middles = (bounds[1:] + bounds[:-1]) / 2
    state = worked.run(exponent).at(middles)
    ideal = worked.path.products[:-1]

    def root(q: torch.Tensor) -> torch.Tensor:
        return q.sign() * q.abs().sqrt()

    drifted = torch.stack([worked.path.at(time).log_scale for time in middles.tolist()])
    return (
        (root(state.products) - root(ideal)).abs().max().item(),
        (state.log_scale - drifted).abs().max().item(),
    )


@pytest.mark.parametrize("worked", [everyone_stays, one_leaves_and_returns, small_head])
def test_snapshots_approach_the_plateaus_as_the_theorem_says(worked) -> None:
    found = [snapshot_error(worked(), exponent) for exponent in (8, 16, 32)]
    products = [one for one, _ in found]
    assert products[0] > 1.5 * products[1] > 3 * products[2]
    if worked is small_head:
        assert products == pytest.approx([0.29, 0.045, 2.5e-3], rel=0.05)
    # Log-scales approach theirs like 1 / log(1/alpha), no faster.
    scaled = [error * -LOG[exponent] for (_, error), exponent in zip(found, (8, 16, 32), strict=True)]
    assert max(scaled) / min(scaled) < 1.06


def test_the_limit_does_not_depend_on_the_start() -> None:
    worked = everyone_stays()
    for seed in range(3):
        draw = np.random.default_rng(1000 + seed)
        start = torch.tensor(draw.normal(size=5)), torch.tensor(draw.normal(size=5))
        runs = [theory.flow(worked.problem, log_alpha=LOG[one], start=start, until=7.0) for one in (20, 40)]
        compared = theory.compare(worked.path, runs)
        assert bool((compared.slope_errors < 1e-4).all())


def test_times_go_down_with_the_size_of_the_loss() -> None:
    worked = everyone_stays()
    run = theory.flow(worked.problem.scaled(10.0), log_alpha=LOG[8], start=worked.start, until=0.65)
    torch.testing.assert_close(
        run.stage_times(worked.path), worked.run(8).stage_times(worked.path) / 10, rtol=1e-5, atol=0
    )


def test_no_scale_is_too_small() -> None:
    worked = everyone_stays()
    run = theory.flow(worked.problem, log_alpha=-1e6, start=worked.start, until=6.0)
    assert run.complete
    torch.testing.assert_close(run.stage_times(worked.path), worked.path.times, rtol=1e-5, atol=0)
    torch.testing.assert_close(run.products[-1], worked.path.products[-1], rtol=1e-6, atol=1e-9)
    # The weights underflow, the log-scales do not.
    assert run.at(0.1).weights[0].abs().max() == 0
    torch.testing.assert_close(run.at(0.1).log_scale, 1 - 0.1 * worked.path.start.force, rtol=0, atol=1e-5)


def test_dense_output_losses_and_shapes() -> None:
    worked = everyone_stays()
    run = worked.run(8)
    steps = run.times[[3, 50, -1]]
    torch.testing.assert_close(run.at(steps).products, run.products[[3, 50, -1]], rtol=1e-9, atol=1e-300)
    assert run.at(1.0).products.shape == (5,)
    assert run.at(torch.tensor([[0.5, 1.0], [2.0, 3.0]]).double()).log_scale.shape == (2, 2, 5)
    times = torch.tensor([0.0, 0.6, 1.5, 3.0, 5.0, 6.3]).double()
    # In the middle of the plateaus, up to the few powers of alpha that they still miss.
    torch.testing.assert_close(run.losses(times), worked.path.losses, rtol=1e-2, atol=1e-3)
    assert run.losses().shape == run.times.shape
    assert bool((run.losses().diff() <= 1e-9).all()), "gradient flow never climbs"
    assert "Flow(log_alpha=-18.42, 5 products, rescaled time 0 to" in repr(run)
    for times in (-0.1, 100.0, math.nan):
        with pytest.raises(UserError, match="covers 0 to"):
            run.at(times)


def test_perturbed_plateaus_return_and_perturbed_activations_end_alike() -> None:
    """Figures 9 and 10: noise on the products that are not negligible is forgotten."""
    worked = everyone_stays()
    run = worked.run(32)
    for time in (0.6, 1.3, 3.0, run.stage_times(worked.path)[2].item() + 1e-4):
        later = run.at(time + 0.3).products
        for seed in range(3):
            moved = run.perturbed(time, noise=0.05, seed=seed, duration=0.3)
            assert (moved.products[0] - run.at(time).products).abs().max() > 1e-3
            torch.testing.assert_close(moved.products[-1], later, rtol=0, atol=2e-6)
            torch.testing.assert_close(moved.conserved, run.conserved)


def test_a_flow_that_meets_a_nan_keeps_what_it_reached() -> None:
    worked = everyone_stays()

    def gradient(q: torch.Tensor) -> torch.Tensor:
        return torch.where(q[3] < -0.1, torch.nan, -worked.problem.force(q))

    run = theory.flow(theory.Problem(size=5, gradient=gradient), log_alpha=LOG[8], start=worked.start, until=3.0)
    assert not run.complete
    assert "the gradient of coordinate 0 is nan" in run.reason
    assert "INCOMPLETE" in repr(run)
    assert 1.9 < run.times[-1] < 2.01
    times = run.stage_times(worked.path)
    torch.testing.assert_close(times[:2], worked.run(8).stage_times(worked.path)[:2], rtol=1e-5, atol=0)
    assert times[2:].isnan().all()
    with pytest.raises(UserError, match="nan"):
        theory.flow(theory.Problem(size=1, gradient=lambda q: q * math.nan), log_alpha=-9.0, start=ONE, until=1.0)


ONE = torch.ones(1), torch.zeros(1)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"log_alpha": 0.0}, "alpha >= 1"),
        ({"log_alpha": 0.1}, "alpha >= 1"),
        ({"start": (torch.ones(2), torch.zeros(2))}, "the start has 2 coordinates, the problem 1"),
        ({"start": (torch.ones(1), -torch.ones(1))}, r"\|u\| = \|v\|"),
        ({"start": (torch.tensor(1.0), torch.tensor(0.0))}, "two vectors of equal length"),
        ({"until": 0.0}, "until = 0"),
        ({"until": math.inf}, "until = inf"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"tolerance": math.nan}, "tolerance"),
    ],
)
def test_what_cannot_be_run(given: dict[str, object], text: str) -> None:
    problem = theory.Problem(size=1, gradient=lambda q: q - 1)
    whole = {"log_alpha": -5.0, "start": ONE, "until": 1.0} | given
    with pytest.raises(UserError, match=text):
        theory.flow(problem, **whole)


def test_a_sweep_is_its_flows() -> None:
    worked = everyone_stays()
    runs = theory.sweep(worked.problem, log_alphas=[LOG[8], LOG[2]], start=worked.start, until=1.0)
    assert [run.log_alpha for run in runs] == [LOG[8], LOG[2]]
    torch.testing.assert_close(runs[0].products[-1], worked.run(8).at(1.0).products, rtol=1e-5, atol=1e-8)
