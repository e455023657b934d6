"""Tensor forms in the place of a whole model's weights, within a budget, and the way back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import rankwise as rw
from rankwise.errors import UserError
from tests.layers.nets import CifarResNet, parameters

FORMS = ("cp", "tucker", "tensor-train")


def images() -> torch.Tensor:
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("budget", [0.3, 30_000])
def test_a_budget_is_kept_and_collapsing_keeps_the_function(form, budget) -> None:
    model = CifarResNet(8).double().eval()
    small = rw.tensorize(model, form=form, budget=budget, init=nn.init.normal_)
    assert sum(isinstance(module, rw.TensorizedConv2d) for module in small.modules()) == 6
    allowed = budget if isinstance(budget, int) else budget * parameters(model)
    assert 0.9 * allowed < parameters(small) <= allowed
    folded = rw.collapse(small)
    assert folded.state_dict().keys() == model.state_dict().keys()
    torch.testing.assert_close(folded(images()), small(images()))
    assert type(model.layer1[0].conv1) is nn.Conv2d


@pytest.mark.parametrize("form", ["tucker", "tensor-train"])
def test_at_full_ranks_the_model_is_as_it_was(form) -> None:
    torch.manual_seed(0)
    model = CifarResNet(8, widths=(4, 6, 8)).double().eval()
    torch.testing.assert_close(rw.tensorize(model, form=form, scale=1.0)(images()), model(images()))


def test_linear_layers_and_a_selection() -> None:
    model = nn.Sequential(nn.Embedding(9, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 4))
    small = rw.tensorize(model, scale=0.5)
    kinds = [type(module) for module in small]
    assert kinds == [nn.Embedding, rw.TensorizedLinear, nn.ReLU, rw.TensorizedLinear, nn.Linear]
    only = rw.tensorize(model, scale=0.5, select="3")
    assert [type(module) for module in only].count(rw.TensorizedLinear) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give one of scale= and budget="),
        ({"scale": 0.1, "budget": 0.1}, "give one of scale= and budget="),
        ({"scale": 2.0}, "a rank scale is above 0 and at most 1, got 2.0"),
        ({"scale": 0.1, "form": "ring"}, "form must be one of cp, tucker, tensor-train, got 'ring'"),
        ({"budget": 0.0}, "budget must be a share of the parameters"),
        ({"budget": 0.001}, r"a budget of 75 parameters .* cannot be met: with rank 1 in every selected layer"),
        ({"scale": 0.1, "select": "nothing"}, "select='nothing' matches none"),
    ],
)
def test_what_cannot_be_is_refused(settings, message) -> None:
    with pytest.raises(UserError, match=message):
        rw.tensorize(CifarResNet(8), **settings)


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(UserError, match="nothing to tensorize: 1 layers are selected"):
        rw.tensorize(nn.Embedding(9, 8), scale=0.5)
