"""LAMB against a reference written out scalar by scalar, and what a torch optimizer has to be able to do."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor, nn

from rankwise.decay.lamb import Lamb
from rankwise.errors import UserError


def tensors(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(4, 3), (5,), (2, 3, 2), (1,)]
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]


def gradients(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(each.shape, generator=generator, dtype=torch.float64) for each in tensors()]


def reference(
    steps: int,
    *,
    decays: tuple[float, ...],
    lr: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    bias_correction: bool = True,
    grad_averaging: bool = True,
    max_grad_norm: float | None = None,
    max_trust_ratio: float | None = None,
    adapted: str = "decayed",
) -> list[list[float]]:
    """Algorithm 2 of You et al. on lists of Python numbers."""
    weights = [each.detach().flatten().tolist() for each in tensors()]
    means = [[0.0] * len(each) for each in weights]
    squares = [[0.0] * len(each) for each in weights]
    for step in range(1, steps + 1):
        given = [each.flatten().tolist() for each in gradients(step)]
        if max_grad_norm is not None:
            norm = math.sqrt(sum(value**2 for each in given for value in each))
            given = [[value / max(1.0, norm / max_grad_norm) for value in each] for each in given]
        for place, decay in enumerate(decays):
            update = []
            for at, (weight, gradient) in enumerate(zip(weights[place], given[place], strict=True)):
                share = 1 - betas[0] if grad_averaging else 1.0
                means[place][at] = betas[0] * means[place][at] + share * gradient
                squares[place][at] = betas[1] * squares[place][at] + (1 - betas[1]) * gradient**2
                mean, square = means[place][at], squares[place][at]
                if bias_correction:
                    mean, square = mean / (1 - betas[0] ** step), square / (1 - betas[1] ** step)
                update.append(mean / (math.sqrt(square) + eps) + decay * weight)
            ratio = 1.0
            if adapted == "all" or decay:
                one, two = (math.sqrt(sum(value**2 for value in each)) for each in (weights[place], update))
                ratio = one / two if one and two else 1.0
                ratio = ratio if max_trust_ratio is None else min(ratio, max_trust_ratio)
            weights[place] = [w - lr * ratio * u for w, u in zip(weights[place], update, strict=True)]
    return weights


def run(parameters: list[nn.Parameter], optimizer: Lamb, steps: range) -> list[list[float]]:
    for step in steps:
        for parameter, gradient in zip(parameters, gradients(step), strict=True):
            parameter.grad = gradient
        optimizer.step()
    return [each.detach().flatten().tolist() for each in parameters]


OPTIONS = [
    {},
    {"adapted": "all"},
    {"bias_correction": False},
    {"grad_averaging": False, "betas": (0.8, 0.9)},
    {"max_grad_norm": 1.0, "eps": 1e-3},
    {"max_trust_ratio": 0.5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rate", ["number", "tensor"])
def test_it_is_the_algorithm(options: dict, rate: str) -> None:
    decays = (0.1, 0.0, 0.3, 0.0)
    parameters = tensors()
    groups = [{"params": [each], "weight_decay": decay} for each, decay in zip(parameters, decays, strict=True)]
    optimizer = Lamb(groups, lr=0.01 if rate == "number" else torch.tensor(0.01, dtype=torch.float64), **options)
    found = run(parameters, optimizer, range(1, 5))
    for one, two in zip(found, reference(4, decays=decays, **options), strict=True):
        assert one == pytest.approx(two, rel=1e-9)


def test_zero_weights_and_zero_updates_have_a_ratio_of_one() -> None:
    zero, still = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))
    zero.grad, still.grad = torch.ones(3), torch.zeros(3)
    Lamb([zero, still], lr=0.1, weight_decay=0.0, adapted="all").step()
    torch.testing.assert_close(zero.detach(), torch.full((3,), -0.1), rtol=1e-4, atol=0)
    assert torch.equal(still.detach(), torch.ones(3))


@pytest.mark.parametrize("how", ["state_dict", "deepcopy", "pickle"])
def test_a_run_goes_on_from_its_state(how: str) -> None:
    parameters = tensors()
    optimizer = Lamb(parameters, lr=0.01, weight_decay=0.1, max_grad_norm=1.0)
    run(parameters, optimizer, range(1, 3))
    if how == "state_dict":
        again = [nn.Parameter(each.detach().clone()) for each in parameters]
        resumed = Lamb(again, lr=0.5, weight_decay=0.7, max_grad_norm=1.0)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    else:
        copied = copy.deepcopy((parameters, optimizer))
        again, resumed = copied if how == "deepcopy" else pickle.loads(pickle.dumps((parameters, optimizer)))
    assert run(again, resumed, range(3, 5)) == run(parameters, optimizer, range(3, 5))


def test_closures_missing_gradients_and_schedulers() -> None:
    parameters = tensors()
    optimizer = Lamb(parameters, lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.0)
    last = parameters[-1].detach().clone()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = sum(each.square().sum() for each in parameters[:-1])
        loss.backward()
        return loss.detach()

    before = float(closure())
    assert float(optimizer.step(closure)) == before
    assert float(closure()) < before
    assert torch.equal(parameters[-1].detach(), last)
    scheduler.step()
    now = float(closure())
    optimizer.step()
    assert float(closure()) == now


def test_a_gradient_scaler_unscales_for_it() -> None:
    ended = []
    for scale in (1.0, 256.0):
        parameters = tensors()
        optimizer = Lamb(parameters, lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale(torch.zeros(()))
        for step in range(1, 3):
            for parameter, gradient in zip(parameters, gradients(step), strict=True):
                parameter.grad = gradient * scale
            scaler.step(optimizer)
            scaler.update()
        ended.append([each.detach().flatten().tolist() for each in parameters])
    for one, two in zip(*ended, strict=True):
        assert one == pytest.approx(two, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lr": -1.0}, "lr must be 0 or more"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers from 0 to below 1"),
        ({"eps": -1.0}, "eps must be 0 or more"),
        ({"weight_decay": float("nan")}, "weight_decay must be 0 or more"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be above 0"),
        ({"max_trust_ratio": -1.0}, "max_trust_ratio must be above 0"),
        ({"adapted": "some"}, "adapted must be 'decayed' or 'all'"),
    ],
)
def test_options_are_checked(options: dict, text: str) -> None:
    with pytest.raises(UserError, match=text):
        Lamb(tensors(), **options)


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(UserError, match="make the embedding with sparse=False"):
        Lamb(table.parameters()).step()
