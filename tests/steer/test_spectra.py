"""Which singular values are left of a matrix that factors are fitted to under each decay: a denoising problem.

Each decay's spectrum is that of a matrix problem, `min |W - Y|_F^2 / 2 + penalty(W)`, solved value by value.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import rankwise as rw
from tests.steer.descent import descend, distance, gaussian, run, with_values

VALUES = torch.linspace(3, 0.1, 20, dtype=torch.float64)
NOISY = with_values(VALUES, seed=0)


def regular(factor: Tensor) -> None:
    nn.init.normal_(factor, std=0.3)


def layer_of(size: int, *, depth: int = 0, init: object = regular, seed: int = 1) -> rw.FactorizedLinear:
    torch.manual_seed(seed)
    return rw.FactorizedLinear(
        size, size, rank=size, depth=depth, bias=False, dtype=torch.float64, init=init, execution="one-step"
    )


def fitted(layer: rw.FactorizedLinear, *, decay: float, of_product: bool = False, steps: int = 600) -> Tensor:
    """The singular values that are left in the end."""
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.02, momentum=0.9, weight_decay=decay)
    if of_product:
        rw.FrobeniusDecay(nn.Sequential(layer)).attach(optimizer)
    run(optimizer, distance(layer, NOISY), steps)
    return torch.linalg.svdvals(layer.weight.detach())


def live(values: Tensor) -> int:
    return int((values > 1e-3).sum())


def test_weight_decay_of_two_factors_is_a_soft_threshold() -> None:
    layer = layer_of(20)
    values = fitted(layer, decay=1.0)
    torch.testing.assert_close(values, (VALUES - 1).clamp_min(0), rtol=0, atol=1e-3)
    assert (round(values[0].item(), 3), live(values)) == (2.0, 14)
    balance = rw.balance(layer.product.detach())
    assert balance.relative < 1e-4


def at_the_matrix(depth: int) -> rw.FactorizedLinear:
    """A layer whose weight is the noisy matrix itself, all factors balanced."""
    return layer_of(20, depth=depth, init=rw.Spectral(draw=lambda weight: weight.copy_(NOISY)))


def test_weight_decay_of_three_factors_takes_whole_directions() -> None:
    """The penalty is `3/2 sum s^(2/3)`: what is left obeys `s - y + s^(-1/3) = 0`, and all below `y = 2` should go.

    Every value above `4 / 3^(3/4)` has such a point, though: which of those below 2 are left is up to the start.
    """
    found = [fitted(layer, decay=1.0) for layer in (layer_of(20, depth=1, seed=2), at_the_matrix(1))]
    assert (round(found[0][0].item(), 3), live(found[0])) == (2.235, 7) == (2.235, int((VALUES > 2).sum()))
    assert 7 < live(found[1]) <= int((VALUES > 4 / 3**0.75).sum()) == 9
    objectives = []
    for values in found:
        kept = values[: live(values)]
        torch.testing.assert_close(kept + kept ** (-1 / 3), VALUES[: len(kept)], rtol=0, atol=1e-3)
        objectives.append((values - VALUES).square().sum() / 2 + 1.5 * (kept ** (2 / 3)).sum())
    assert objectives[0] < objectives[1]


@pytest.mark.parametrize("depth", [0, 1])
def test_frobenius_decay_shrinks_all_values_in_proportion(depth: int) -> None:
    # With an inner factor, values near zero take very long to grow from a regular start.
    layer = at_the_matrix(depth) if depth else layer_of(20)
    values = fitted(layer, decay=1.0, of_product=True)
    torch.testing.assert_close(values, VALUES / 2, rtol=0, atol=1e-3)
    assert (round(values[0].item(), 3), live(values)) == (1.5, 20)


def test_without_decay_everything_stays() -> None:
    torch.testing.assert_close(fitted(layer_of(20), decay=0.0), VALUES, rtol=0, atol=1e-3)


def test_the_dense_layer_is_shrunk_in_proportion_by_its_own_decay() -> None:
    """What Frobenius decay restores, and what no threshold can be made of."""
    dense = nn.Linear(20, 20, bias=False, dtype=torch.float64)
    optimizer = torch.optim.SGD(dense.parameters(), lr=0.2, weight_decay=1.0)
    run(optimizer, lambda: (dense.weight - NOISY).square().sum() / 2, 60)
    torch.testing.assert_close(torch.linalg.svdvals(dense.weight.detach()), VALUES / 2, rtol=0, atol=1e-3)


def test_nuclear_decay_reaches_the_soft_threshold_without_balance() -> None:
    """The left factor starts three times as large as the right one: weight decay would balance the two."""
    values = torch.tensor([3.0, 2.2, 1.6, 1.2, 0.7, 0.4, 0.2, 0.1], dtype=torch.float64)
    layer = layer_of(8, init=nn.init.orthogonal_)
    with torch.no_grad():
        layer.factors[0].mul_(1.5)
        layer.factors[1].mul_(0.5)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    rw.NuclearDecay(nn.Sequential(layer), coefficient=1.0).attach(optimizer)
    # A subgradient steps over zero by its own length, so that the steps have to become small in the end.
    scheduler = torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.9 if step > 50 else 1.0)
    for _ in descend(optimizer, distance(layer, with_values(values, seed=4)), 150):
        scheduler.step()
    found = torch.linalg.svdvals(layer.weight.detach())
    torch.testing.assert_close(found, (values - 1).clamp_min(0), rtol=0, atol=1e-3)
    assert rw.balance(layer.product.detach()).relative > 0.4


@pytest.mark.parametrize(("of_left", "of_right"), [(0.1, 0.4), (0.4, 0.1), (1.0, 0.09)])
def test_unequal_decays_act_as_their_geometric_mean(of_left: float, of_right: float) -> None:
    layer = layer_of(6)
    values = torch.tensor([1.2, 1.0, 0.8, 0.6, 0.15, 0.1], dtype=torch.float64)
    left, right = layer.factors
    groups = [{"params": [left], "weight_decay": of_left}, {"params": [right], "weight_decay": of_right}]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    run(optimizer, distance(layer, with_values(values, seed=8)), 700)
    threshold = (of_left * of_right) ** 0.5
    found = torch.linalg.svdvals(layer.weight.detach())
    torch.testing.assert_close(found, (values - threshold).clamp_min(0), rtol=0, atol=1e-3)
    # Each side carries the share that its own decay leaves it, so the factors are not balanced.
    torch.testing.assert_close(of_left * left.mT @ left, of_right * right @ right.mT, rtol=0, atol=1e-3)
    assert rw.balance(layer.product.detach()).relative_imbalance > 0.5


def test_decay_of_one_factor_alone_leaves_no_threshold_and_lets_the_other_grow() -> None:
    """For one value `y`: `b^4 = 4 lam y^2 t` and `y - s = lam y / b^2`, so the threshold goes like `t^(-1/2)`."""
    coefficient, rate = 0.2, 0.1
    layer = layer_of(5)
    values = torch.tensor([1.0, 0.8, 0.6, 0.4, 0.2], dtype=torch.float64)
    decayed, free = layer.factors
    groups = [{"params": [decayed], "weight_decay": coefficient}, {"params": [free]}]
    optimizer = torch.optim.SGD(groups, lr=rate)
    loss = distance(layer, with_values(values, seed=2))
    reached = []
    for steps in (500, 2000):
        run(optimizer, loss, steps)
        reached.append((torch.linalg.svdvals(layer.weight.detach()), decayed.norm().item(), free.norm().item()))
    time = rate * 2500
    (early, large, small), (late, less, more) = reached
    assert bool((late > early).all())
    assert bool((values - late < coefficient / 4).all())
    assert (values - late)[0].item() == pytest.approx((coefficient / (4 * time)) ** 0.5, rel=0.05)
    assert less < 0.8 * large < large
    assert more > 1.2 * small


PENALTIES: dict[str, Callable[[Tensor], Tensor]] = {
    "threshold": lambda values: values.sum(),
    "shrinkage": lambda values: values.square().sum() / 2,
}


@pytest.mark.parametrize("name", PENALTIES)
def test_what_descent_finds_is_the_minimum_over_matrices(name: str) -> None:
    """Not only by the formula: no perturbation of the matrix that was found is better, at the coefficient 1."""
    layer = layer_of(20)
    fitted(layer, decay=1.0, of_product=name == "shrinkage")
    found = layer.weight.detach()

    def objective(matrix: Tensor) -> Tensor:
        return (matrix - NOISY).square().sum() / 2 + PENALTIES[name](torch.linalg.svdvals(matrix))

    lowest = objective(found)
    for seed in range(20):
        step = gaussian(20, 20, seed=seed)
        assert objective(found + 0.02 * step) > lowest
        assert objective(found + 0.02 * gaussian(20, 1, seed=seed) @ gaussian(1, 20, seed=seed + 1)) > lowest
