"""What can be factorized, what cannot, and that nothing is left out of either list."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

import rankwise as rw
from rankwise.layers.candidates import candidates
from rankwise.sites.singles import is_matrix


class House(nn.Module):
    """One of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.clipped = nn.Embedding(20, 8, max_norm=1.0)
        self.up = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.again = self.up
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.words.weight
        self.conv = nn.Conv2d(4, 6, 3)
        self.grouped = nn.Conv2d(4, 6, 3, groups=2)
        self.line = nn.Conv1d(4, 6, 3)
        self.attention = nn.MultiheadAttention(8, 2)
        self.memory = nn.LSTM(8, 4)
        self.scaled = parametrizations.weight_norm(nn.Linear(8, 8))
        self.watched = nn.Linear(8, 8)
        self.watched.register_forward_hook(lambda *_: None)
        self.factorized = rw.FactorizedLinear(8, 8, rank=2)
        self.free = nn.Parameter(torch.zeros(3, 4))
        self.odd = nn.Linear(8, 8, dtype=torch.complex64)
        self.bare = nn.Parameter(torch.zeros(5))


def test_every_matrix_is_in_one_list():
    house = House()
    able, unable = candidates(house)
    assert [candidate.names for candidate in able] == [("words", "head"), ("up",), ("conv",)]
    reasons = {each.parameter: each.reason for each in unable}
    assert reasons == {
        "free": "it belongs to a House, which has no factorized form",
        "clipped.weight": "an embedding with max_norm=1.0 renormalizes rows of its table, which a product has not",
        "grouped.weight": "its convolution has 2 groups: a product for each group",
        "line.weight": "it belongs to a Conv1d, which has no factorized form",
        "attention.in_proj_weight": "it belongs to a MultiheadAttention: rankwise.shrink_heads gives it smaller heads",
        "attention.out_proj.weight": "it belongs to a MultiheadAttention: rankwise.shrink_heads gives it smaller heads",
        "memory.weight_ih_l0": "it belongs to a LSTM, which has no factorized form",
        "memory.weight_hh_l0": "it belongs to a LSTM, which has no factorized form",
        "scaled.parametrizations.weight.original1": "it belongs to a ParametrizationList, which has no factorized form",
        "watched.weight": "its layer has hooks, which a layer in its place would not have",
        "factorized.factors.0": "it is a factor of a FactorizedLinear already",
        "factorized.factors.1": "it is a factor of a FactorizedLinear already",
        "odd.weight": "its weight is of type complex64",
    }
    matrices = {id(each) for each in house.parameters() if is_matrix(tuple(each.shape))}
    told = {id(house.get_parameter(each.parameter)) for each in unable}
    told |= {id(candidate.modules[0].get_parameter("weight")) for candidate in able}
    assert told == matrices


def test_a_weight_that_is_tied_to_what_cannot_be_factorized_stays_with_it():
    house = nn.ModuleDict({"words": nn.Embedding(20, 8), "own": nn.Module()})
    house["own"].table = house["words"].weight
    able, unable = candidates(house)
    assert able == []
    assert {each.parameter: each.reason for each in unable} == {
        "own.table": "it belongs to a Module, which has no factorized form",
        "words.weight": "it is tied to own.table: it belongs to a Module, which has no factorized form",
    }


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_a_weight_that_a_hook_computes_is_left_alone():
    able, unable = candidates(nn.Sequential(weight_norm(nn.Linear(8, 6))))
    assert able == []
    assert [each.parameter for each in unable] == ["0.weight_v"]


def test_lazy_layers_and_subclasses_say_why():
    class OwnLinear(nn.Linear):
        pass

    _, unable = candidates(nn.Sequential(nn.LazyLinear(4, bias=False), OwnLinear(4, 4)))
    assert [each.reason for each in unable] == [
        "its layer is lazy: run the model once on an input",
        "its layer is a OwnLinear, which may do more than a Linear",
    ]


def test_adapters_and_what_they_stand_on_are_left_alone():
    """PEFT merges into `base_layer.weight` in place, which a weight that is computed would not feel."""
    peft = pytest.importorskip("peft")
    model = nn.ModuleDict({"words": nn.Embedding(9, 8), "up": nn.Linear(8, 8), "down": nn.Linear(8, 8)})
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["up", "words"]))
    able, unable = candidates(adapted)
    assert [candidate.names for candidate in able] == [("base_model.model.down",)]
    reasons = {each.parameter.removeprefix("base_model.model."): each.reason for each in unable}
    factor, base = "it is a factor of an adapter already", "an adapter stands on it"
    assert reasons.pop("words.base_layer.weight").startswith(base)
    assert reasons.pop("up.base_layer.weight").startswith(base)
    assert set(reasons.values()) == {factor}
    assert len(reasons) == 4
    merged = rw.factorize(adapted.merge_and_unload(), rank=2)
    assert isinstance(merged["up"], rw.FactorizedLinear)


def test_the_model_itself_may_be_the_layer():
    (only,), unable = candidates(nn.Linear(4, 3))
    assert (only.names, only.kind, only.weight_shape, unable) == (("",), "linear", (3, 4), [])
