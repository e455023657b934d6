"""Measured plans: every layer is timed on what the model feeds it, and the model is none the wiser."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import rankwise as rw
from rankwise.errors import UserError
from rankwise.layers.timing import Timing, inputs_of, measure
from tests.layers.nets import CifarResNet
from tests.layers.test_planning import shown


def test_a_measured_plan_says_what_is_faster_and_applies_it():
    torch.manual_seed(0)
    model = CifarResNet(8)
    before = copy.deepcopy(model.state_dict())
    plan = rw.factorization_plan(model, rank=0.1, measure_on=torch.randn(2, 3, 32, 32))
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    text = shown(plan)
    assert "time here" in text
    for layer in plan.layers:
        assert min(layer.timing.dense, layer.timing.two_step, layer.timing.one_step) > 0
        assert f"{layer.timing.share:.2f} {layer.timing.faster}" in text
        assert plan.apply(model).get_submodule(layer.names[0]).execution == layer.timing.faster


def test_inputs_are_tensors_sequences_or_keywords():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.idle = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(2, 2)

        def forward(self, left, right):
            return self.two(input=self.one(left) + right)

    model = Two()
    left, right = torch.randn(6, 3), torch.randn(6, 4)
    for given in ([left, right], (left, right), {"left": left, "right": right}):
        seen = inputs_of(model, ["one", "two", "idle"], given)
        assert {name: tuple(each.shape) for name, each in seen.items()} == {"one": (6, 3), "two": (6, 4)}
    plan = rw.factorization_plan(model, rank=2, select=["one", "idle"], measure_on=[left, right])
    assert [layer.notes[-1:] for layer in plan.layers] == [
        ("no fewer parameters than dense",),
        ("not measured: these inputs do not reach it",),
    ]
    with pytest.raises(UserError, match="none of the layers to measure is run on these inputs"):
        rw.factorization_plan(model, rank=1, select="idle", measure_on=[left, right])


def test_both_ways_are_timed_and_the_faster_one_kept():
    dense = nn.Linear(256, 256)
    made = rw.FactorizedLinear.from_dense(dense, rank=4)
    timing = measure(dense, made, torch.randn(64, 256))
    assert made.execution == timing.faster
    assert timing.device == "cpu"
    # Forming the weight costs as much as applying it 4 times here: no machine gets this wrong.
    huge = rw.FactorizedLinear(256, 256, rank=4096, overcomplete=True, init=nn.init.normal_)
    assert measure(dense, huge, torch.randn(1, 256)).faster == "two-step"


def test_a_verdict_in_words():
    timing = Timing(dense=2.0, two_step=1.0, one_step=3.0, device="cpu")
    assert (timing.faster, timing.share, str(timing)) == ("two-step", 0.5, "2.00 x faster, two-step")
    timing = Timing(dense=2.0, two_step=6.0, one_step=3.0, device="cpu")
    assert (timing.faster, str(timing)) == ("one-step", "1.50 x slower, one-step")
