"""Controls of singular values: each does to the values what it says, and nothing to anything else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from rankwise.decay.controls.rank_cap import RankCap
from rankwise.decay.controls.spectral import SpectralControl
from rankwise.decay.controls.spectral_cap import SpectralCap
from rankwise.decay.controls.thresholding import SingularValueThresholding
from rankwise.errors import UserError
from rankwise.product.groups import concatenated
from tests.decay import models

MODELS = {
    "heads of a fused tensor": (models.gpt2, ("qk", "ov")),
    "grouped heads": (models.llama, ("qk", "ov")),
    "two factors": (lambda: models.chain(9, 3, 7), "linear"),
    "three factors": (lambda: models.chain(9, 3, 4, 7), "linear"),
    "wide": (lambda: models.chain(3, 9, 4), "linear"),
    "single matrices": (models.gpt2, "mlp"),
}
CONTROLS: dict[str, tuple[Callable[..., SpectralControl], Callable[[Tensor], Tensor]]] = {
    "threshold": (lambda sites: SingularValueThresholding(sites, coefficient=4.0), lambda s: (s - 4.0).clamp_min(0)),
    "rank": (lambda sites: RankCap(sites, rank=2), lambda s: s * (torch.arange(s.shape[-1]) < 2)),
    "cap": (lambda sites: SpectralCap(sites, largest=6.0), lambda s: s.clamp_max(6.0)),
}


def whole(model: nn.Module, site) -> Tensor:
    """The matrices multiplied out; those of a group that shares a factor as one."""
    product = site.product(model)
    shared = product.depth == 2 and len({factor.shape[:-2] for factor in product.factors}) == 2
    return (concatenated(product, 1) if shared else product).dense().detach()


@pytest.mark.parametrize("which", CONTROLS)
@pytest.mark.parametrize("case", MODELS)
def test_values_become_what_the_formula_says_in_the_same_directions(case: str, which: str) -> None:
    make, kind = MODELS[case]
    control, formula = CONTROLS[which]
    model = make()
    sites = models.products(model, kind)
    expected = []
    for site in sites:
        u, s, vh = torch.linalg.svd(whole(model, site), full_matrices=False)
        expected.append(u * formula(s)[..., None, :] @ vh)
    untouched = {name: each.detach().clone() for name, each in model.named_parameters()}
    control(sites).apply()
    for site, wanted in zip(sites, expected, strict=True):
        torch.testing.assert_close(whole(model, site), wanted, rtol=1e-8, atol=1e-8)
    decayed = {name for site in sites for name in site.parameters}
    for name, parameter in model.named_parameters():
        assert name in decayed or torch.equal(parameter, untouched[name])


def test_balanced_factors_stay_balanced_and_what_is_kept_does_not_move() -> None:
    model = models.chain(9, 3, 7)
    sites = models.products(model, "linear")
    (site,) = sites
    one, two = model.parameters()
    with torch.no_grad():
        for parameter, factor in zip((one, two), site.product(model).balanced().factors, strict=True):
            parameter.copy_(factor)
    start = [each.detach().clone() for each in (one, two)]
    SpectralCap(sites, largest=1e6).apply()
    assert torch.equal(one, start[0])
    assert torch.equal(two, start[1])
    SingularValueThresholding(sites, coefficient=1.0).apply()
    torch.testing.assert_close(one.mT @ one, two @ two.mT, rtol=1e-9, atol=1e-9)


def test_a_training_with_thresholds_settles_where_descent_and_threshold_meet() -> None:
    """Descent lifts a balanced `s` by `2 s (y - s)` where the threshold takes 1: `s = (y + sqrt(y^2 - 2)) / 2`.

    Where there is no such value, it comes to zero exactly.
    """
    goal = torch.tensor([3.0, 2.0, 0.7, 0.4], dtype=torch.float64)
    model = models.Tree({f"up.factors.{place}": torch.eye(4, dtype=torch.float64) for place in range(2)})
    one, two = model.parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=4e-3)
    SingularValueThresholding(models.products(model, "linear"), coefficient=1.0).attach(optimizer, every=5)
    for _ in range(500):
        optimizer.zero_grad()
        ((one @ two - torch.diag(goal)).square().sum() / 2).backward()
        optimizer.step()
    values = torch.linalg.svdvals((one @ two).detach())
    torch.testing.assert_close(values[:2], (goal[:2] + (goal[:2] ** 2 - 2).sqrt()) / 2, rtol=0, atol=0.02)
    assert (values[2:] < 1e-12).all()


def test_rates_are_summed_over_the_steps_in_between() -> None:
    fallen = []
    for every in (1, 4):
        model = models.chain(9, 3, 7)
        sites = models.products(model, "linear")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
        SingularValueThresholding(sites, coefficient=0.5).attach(optimizer, every=every)
        before = torch.linalg.svdvals(whole(model, next(iter(sites))))[:3]
        for _ in range(4):
            optimizer.zero_grad()
            optimizer.step()
            scheduler.step()
        fallen.append(before - torch.linalg.svdvals(whole(model, next(iter(sites))))[:3])
    wanted = torch.full((3,), 0.5 * 0.1 * (1 + 1 / 2 + 1 / 3 + 1 / 4), dtype=torch.float64)
    for each in fallen:
        torch.testing.assert_close(each, wanted, rtol=1e-9, atol=1e-9)


def test_unequal_rates_need_a_control_each() -> None:
    model = models.chain(9, 3, 7)
    one, two = model.parameters()
    optimizer = torch.optim.SGD([{"params": [one], "lr": 0.1}, {"params": [two], "lr": 0.2}], lr=0.1)
    SingularValueThresholding(models.products(model, "linear"), coefficient=0.5).attach(optimizer)
    with pytest.raises(UserError, match=r"learning rates 0.1, 0.2: a threshold needs one"):
        optimizer.step()


def test_a_matrix_that_is_not_finite_is_left_alone_with_its_name() -> None:
    model = models.gpt2()
    with torch.no_grad():
        model.get_parameter("h.0.attn.c_proj.weight")[0, 0] = torch.nan
    start = model.get_parameter("h.1.attn.c_proj.weight").detach().clone()
    with pytest.warns(UserWarning, match=r"RankCap left layers.0.ov alone"):
        RankCap(models.products(model, "ov"), rank=1).apply()
    assert not torch.equal(model.get_parameter("h.1.attn.c_proj.weight"), start)


def test_settings_are_checked() -> None:
    model = models.chain(9, 3, 7)
    for bad in (0, 1.5, True):
        with pytest.raises(UserError, match="rank must be a whole number from 1 on"):
            RankCap(model, rank=bad)
    with pytest.raises(UserError, match="largest must be a positive number"):
        SpectralCap(model, largest=0.0)
    with pytest.raises(UserError, match="coefficient must be a finite number"):
        SingularValueThresholding(model, coefficient=float("nan"))
    with pytest.raises(UserError, match="is kept as a tensor, which has no singular values of its own"):
        RankCap(models.Tensorized(), rank=1)
