"""What decay does to the imbalance `D = A^T A - B B^T` of factors while they learn, step by step and in time."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import rankwise as rw
from rankwise.product.chain_balance import chain_balance
from tests.steer.descent import Loss, classifier, descend, distance, gaussian, generator, imbalance, run, slope

seeds = st.integers(0, 2**20)
rates = st.floats(1e-3, 0.3)
coefficients = st.floats(0.0, 1.0)


def factorized(net: nn.Module) -> list[rw.FactorizedLinear]:
    return [layer for layer in net.modules() if isinstance(layer, rw.FactorizedLinear)]


def batches(net: nn.Module, seed: int, *, size: int = 16) -> Loss:
    """Cross-entropy on batches that are drawn anew at each call: the law needs no fixed loss, nor a convex one."""
    source = generator(seed)

    def loss() -> Tensor:
        inputs = torch.randn(size, 9, generator=source, dtype=torch.float64)
        return F.cross_entropy(net(inputs), inputs[:, :5].square().argmax(1))

    return loss


def weight_gradients(net: nn.Module, seed: int) -> list[Tensor]:
    """The gradients by the products themselves, on a dense net of the same function and the same batch."""
    dense = rw.collapse(net)
    batches(dense, seed)().backward()
    return [layer.weight.grad for layer in dense if isinstance(layer, nn.Linear)]


def expected(layer: rw.FactorizedLinear, gradient: Tensor, rate: float, shrink: float) -> Tensor:
    """`(1 - eta lam)^2 D + eta^2 (B M^T M B^T - A^T M M^T A)`, for the gradient `M` by the product."""
    left, right = (factor.detach() for factor in layer.factors)
    noise = right @ gradient.mT @ gradient @ right.mT - left.mT @ gradient @ gradient.mT @ left
    return shrink**2 * imbalance(layer.product) + rate**2 * noise


def assert_law(net: nn.Module, wanted: list[Tensor]) -> None:
    for layer, one in zip(factorized(net), wanted, strict=True):
        torch.testing.assert_close(imbalance(layer.product), one, rtol=1e-11, atol=1e-12 * one.norm().item() + 1e-15)


@settings(max_examples=25)
@given(seeds, rates, coefficients)
def test_one_step_of_sgd_with_weight_decay(seed: int, rate: float, coefficient: float) -> None:
    net = classifier(seed)
    gradients = weight_gradients(net, seed)
    wanted = [expected(*pair, rate, 1 - rate * coefficient) for pair in zip(factorized(net), gradients, strict=True)]
    run(torch.optim.SGD(net.parameters(), lr=rate, weight_decay=coefficient), batches(net, seed), 1)
    assert_law(net, wanted)


@settings(max_examples=25)
@given(seeds, rates, coefficients, st.booleans())
def test_one_step_of_sgd_with_frobenius_decay(seed: int, rate: float, coefficient: float, decoupled: bool) -> None:
    """The product's own decay is a part of the gradient by the product: nothing shrinks but by the square of a step."""
    net = classifier(seed)
    gradients = [
        gradient + coefficient * layer.weight.detach()
        for layer, gradient in zip(factorized(net), weight_gradients(net, seed), strict=True)
    ]
    wanted = [expected(*pair, rate, 1.0) for pair in zip(factorized(net), gradients, strict=True)]
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    rw.FrobeniusDecay(net, coefficient=coefficient, decoupled=decoupled).attach(optimizer)
    run(optimizer, batches(net, seed), 1)
    assert_law(net, wanted)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_the_law_does_not_hold_for_adaptive_optimizers(optimizer: type[torch.optim.Optimizer]) -> None:
    net = classifier(0)
    gradients = weight_gradients(net, 0)
    wanted = [expected(*pair, 1e-2, 1 - 1e-3) for pair in zip(factorized(net), gradients, strict=True)]
    run(optimizer(net.parameters(), lr=1e-2, weight_decay=0.1), batches(net, 0), 1)  # pyright: ignore[reportCallIssue]
    with pytest.raises(AssertionError):
        assert_law(net, wanted)


def trained(rate: float, *, factors: float = 0.0, product: float = 0.0, time: float = 10.0) -> list[list[Tensor]]:
    """The imbalances of both layers, ten times while they train on one batch for a time, in steps of a rate."""
    net = classifier(3)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, weight_decay=factors)
    if product:
        rw.FrobeniusDecay(net, coefficient=product).attach(optimizer)
    inputs = gaussian(64, 9, seed=5)
    labels = inputs[:, :5].square().argmax(1)
    courses = [[imbalance(layer.product)] for layer in factorized(net)]
    steps = round(time / rate)
    for step in descend(optimizer, lambda: F.cross_entropy(net(inputs), labels), steps):
        if step % (steps // 10) == 0:
            for layer, course in zip(factorized(net), courses, strict=True):
                course.append(imbalance(layer.product))
    return courses


def test_small_steps_conserve_the_imbalance_under_frobenius_decay_and_damp_it_under_weight_decay() -> None:
    coefficient = 0.1
    drifts = {
        rate: [((course[-1] - course[0]).norm() / course[0].norm()).item() for course in trained(rate, product=0.1)]
        for rate in (0.08, 0.04)
    }
    for coarse, fine in zip(*drifts.values(), strict=True):
        assert fine < 0.03
        # All of it comes from the squares of the steps.
        assert coarse / fine == pytest.approx(2, rel=0.1)
    for course in trained(0.04, factors=coefficient):
        times = [float(place) for place in range(11)]
        assert slope(times, course) == pytest.approx(-2 * coefficient, rel=0.02)
        # Every entry alike, not only the norm.
        share = torch.exp(torch.tensor(-2 * coefficient * times[-1]))
        torch.testing.assert_close(course[-1], share * course[0], rtol=0, atol=0.02 * share * course[0].norm().item())


def test_a_rebalanced_net_stays_balanced_under_frobenius_decay_and_a_regular_start_does_not_become_so() -> None:
    regular = classifier(3)
    balanced = copy.deepcopy(regular)
    rw.balance_(balanced)
    found = {}
    for name, net in {"regular": regular, "balanced": balanced}.items():
        optimizer = torch.optim.SGD(net.parameters(), lr=0.02, weight_decay=0.1)
        rw.FrobeniusDecay(net).attach(optimizer)
        run(optimizer, batches(net, 7), 200)
        found[name] = [rw.balance(layer.product.detach()) for layer in factorized(net)]
    for one, two in zip(found["regular"], found["balanced"], strict=True):
        assert one.relative_imbalance > 0.5
        assert two.relative_imbalance < 0.03
        assert two.relative < 1e-4 < 0.05 < one.relative


@pytest.mark.parametrize("told", [True, False])
def test_rebalancing_in_the_middle_of_training_moves_momentum_along_if_it_is_told_of_the_optimizer(told: bool) -> None:
    """Momentum of the old gauge pulls a balanced net out of balance at first order in the rate, its own at second."""
    inputs = gaussian(64, 9, seed=5)
    labels = inputs[:, :5].square().argmax(1)
    found = []
    for rate in (2e-3, 1e-3):
        net = classifier(3)
        optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, weight_decay=0.1)
        rw.FrobeniusDecay(net).attach(optimizer)

        def loss(net: nn.Module = net) -> Tensor:
            return F.cross_entropy(net(inputs), labels)

        run(optimizer, loss, 20)
        rw.balance_(net, optimizer=optimizer if told else None)
        run(optimizer, loss, 20)
        found.append(max(rw.balance(layer.product.detach()).relative_imbalance.item() for layer in factorized(net)))
    assert found[0] / found[1] == pytest.approx(4 if told else 2, rel=0.25)
    assert (found[1] < 0.01) == told


@pytest.mark.parametrize("charge", ["factors", "product"])
@pytest.mark.parametrize("depth", [1, 2])
def test_chains_obey_the_laws_at_every_junction(depth: int, charge: str) -> None:
    torch.manual_seed(0)
    made = {"rank": 4, "depth": depth, "bias": False, "dtype": torch.float64}
    layer = rw.FactorizedLinear(8, 10, **made, init=lambda factor: nn.init.normal_(factor, std=0.5))
    optimizer = torch.optim.SGD(layer.parameters(), lr=4e-3, weight_decay=0.5)
    if charge == "product":
        rw.FrobeniusDecay(layer).attach(optimizer)
    courses = [[one.imbalance for one in chain_balance(layer.product.detach()).junctions]]
    for step in descend(optimizer, distance(layer, gaussian(10, 8, seed=1)), 250):
        if step % 25 == 0:
            courses.append([one.imbalance for one in chain_balance(layer.product.detach()).junctions])
    times = [0.1 * place for place in range(11)]
    for junction in range(depth + 1):
        course = [each[junction] for each in courses]
        if charge == "factors":
            assert slope(times, course) == pytest.approx(-2 * 0.5, rel=0.03)
        else:
            assert (course[-1] - course[0]).norm() < 0.03 * course[0].norm()
