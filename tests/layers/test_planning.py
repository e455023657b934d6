"""Plans: the ranks that were asked for, what they cost, and what is wrong with a request."""

from __future__ import annotations

from io import StringIO

import pytest
import torch
from rich.console import Console
from torch import nn

import rankwise as rw
from rankwise.errors import UserError
from tests.layers.draws import with_values
from tests.layers.nets import CifarResNet, on_meta


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 9), nn.ReLU(), nn.Linear(9, 3))


def shown(plan: rw.Plan, width: int = 160) -> str:
    console = Console(width=width, record=True, file=StringIO())
    console.print(plan)
    return console.export_text()


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (4, {"0": 4, "2": 4}),
        (0.5, {"0": 5, "2": 4}),
        (0.001, {"0": 1, "2": 1}),
        ({"0": 3}, {"0": 3}),
        ({"2": 0.34, "*": 2}, {"0": 2, "2": 3}),
    ],
)
def test_ranks_as_numbers_shares_and_by_path(rank, expected):
    plan = rw.factorization_plan(net(), rank=rank)
    assert plan.ranks == expected
    assert plan.scale == (rank if isinstance(rank, float) else None)


def test_layers_that_a_mapping_does_not_name_stay_dense():
    plan = rw.factorization_plan(net(), rank={"0": 3})
    assert {each.parameter: each.reason for each in plan.dense}["2.weight"] == "rank= does not name it"


def test_layers_too_thin_for_one_rank_for_all_stay_dense_and_say_so():
    plan = rw.factorization_plan(net(), rank=10)
    assert plan.ranks == {"0": 10}
    reasons = {each.parameter: each.reason for each in plan.dense}
    assert reasons["2.weight"] == "its largest rank is 9, and 10 were asked for"
    assert rw.factorization_plan(net(), rank=10, overcomplete=True).ranks == {"0": 10, "2": 10}


def test_the_ranks_of_a_plan_make_the_same_plan():
    plan = rw.factorization_plan(net(), budget=0.7)
    assert rw.factorization_plan(net(), rank=plan.ranks).layers == plan.layers


@pytest.mark.parametrize(("energy", "expected"), [(0.5, 1), (0.9, 2), (0.999, 3), (1.0, 4)])
def test_energy_is_what_each_weight_keeps_as_it_is(energy, expected):
    model = nn.Sequential(nn.Linear(12, 10), nn.Linear(12, 10)).double()
    for layer in model:
        layer.weight.data = with_values(torch.tensor([5.0, 4.0, 2.0, 0.2]), 10, 12)
    assert rw.factorization_plan(model, energy=energy).ranks == {"0": expected, "1": expected}


def test_energy_is_counted_in_the_matrix_that_is_factorized():
    separable = torch.einsum("o,k,i,l->oikl", *(torch.rand(size) + 0.1 for size in (4, 3, 5, 3)))
    model = nn.Sequential(nn.Conv2d(3, 5, 1), nn.Conv2d(5, 4, 3))
    model[1].weight.data = separable + separable.flip(-1)
    assert rw.factorization_plan(model, energy=0.999).ranks == {"1": 1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give one of budget=, rank= and energy="),
        ({"rank": 2, "budget": 0.1}, "give one of budget=, rank= and energy="),
        ({"rank": 0}, "0: rank must be at least 1, got 0"),
        ({"rank": 11}, "0: rank 11 is above 10, the largest rank of a 10x12 matrix: give overcomplete=True"),
        ({"rank": 10, "select": ["0", "2"]}, "2: rank 10 is above 9, the largest rank of a 9x10 matrix"),
        ({"rank": {"*": 10}}, "2: rank 10 is above 9, the largest rank of a 9x10 matrix"),
        ({"rank": -0.5}, "a rank given as a share of the largest one must be a finite number above 0, got -0.5"),
        ({"rank": float("inf")}, "must be a finite number above 0, got inf"),
        ({"rank": {"nothing": 3}}, "rank= names 'nothing', which matches none of the 2 selected layers: 0, 2"),
        ({"rank": True}, "rank must be a whole number, got True"),
        ({"energy": 1.5}, "a share must lie above 0 and at most at 1, got 1.5"),
        ({"budget": 0.01}, "a budget of 3 parameters"),
        ({"budget": "10%"}, "budget must be a share of the parameters .* got '10%'"),
        ({"budget": float("inf")}, "budget must be a share of the parameters .* got inf"),
        ({"energy": "0.9"}, "energy must be a share of the squared singular values .* got '0.9'"),
        ({"rank": "8"}, "rank must be a whole number, got '8'"),
        ({"rank": 2, "select": 3}, "select= takes paths, globs or a function of path and module, got 3"),
        ({"rank": 2, "init": "zeros"}, "init must be 'spectral'"),
        ({"rank": 2, "form": "ring"}, "form must be one of spatial, channel, cp, tucker, tensor-train, got 'ring'"),
        ({"rank": 2, "depth": -1}, "depth, the number of inner factors"),
        ({"rank": 2, "execution": "fast"}, "execution must be one of auto"),
    ],
)
def test_requests_that_cannot_be_are_refused_in_one_line(settings, message):
    with pytest.raises(UserError, match=message) as caught:
        rw.factorization_plan(net(), **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("call", [rw.factorization_plan, rw.factorize])
def test_what_is_no_model_is_refused(call):
    with pytest.raises(UserError, match=r"needs a model, a torch\.nn\.Module, and got a dict: load weights into their"):
        call({"weight": torch.ones(3, 3)}, rank=2)
    with pytest.raises(UserError, match="and got a NoneType"):
        rw.collapse(None)


def test_a_model_without_values_cannot_be_measured():
    with pytest.raises(UserError, match="measure_on= runs the model: it is on the meta device"):
        rw.factorization_plan(on_meta(CifarResNet, 8), rank=2, measure_on=torch.zeros(1, 3, 8, 8))


def test_energy_needs_values_that_are_numbers():
    with pytest.raises(UserError, match="the model is on the meta device, and has none"):
        rw.factorization_plan(on_meta(CifarResNet, 8), energy=0.9)
    broken = net()
    broken[0].weight.data[0, 0] = torch.nan
    with pytest.raises(UserError, match="the weight of 0 holds NaN or Inf"):
        rw.factorization_plan(broken, energy=0.9)


def test_the_plan_prints_what_it_does_and_what_it_leaves():
    text = shown(rw.factorization_plan(on_meta(CifarResNet, 8), rank=0.25))
    for part in ("layer3.0.conv1", "64x32x3x3", "24/96", "6,912 0.38", "18,432 0.50", "75,290 -> ", "scale 0.25"):
        assert part in text
    for part in ("stays dense", "conv1.weight", "16x3x3x3", "it reads the input: select it by name"):
        assert part in text
    tied = nn.ModuleDict({"words": nn.Embedding(20, 8), "up": nn.Linear(8, 8), "head": nn.Linear(8, 20)})
    tied["head"].weight = tied["words"].weight
    text = shown(rw.factorization_plan(tied, rank=6))
    assert "words, head" in text
    assert "tied: its factors are shared; no fewer parameters than dense" in text


def test_printing_a_plan_shows_its_tables_and_its_name_says_the_gist(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    plan = rw.factorization_plan(on_meta(CifarResNet, 20), budget=0.3)
    print(plan)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.lstrip().startswith("layer") and "/" in line for line in lines) == 18  # none is broken in two
    assert "stays dense" in {line.strip() for line in lines}
    assert repr(plan) == "Plan(18 layers factorized, 2 matrices stay dense: 269,722 -> 80,650 parameters)"


def test_matrices_of_equal_layers_that_stay_dense_share_a_row():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    plan = rw.factorization_plan(nn.TransformerEncoder(layer, 3), rank=2)
    assert len(plan.dense) == 6
    rows = [line for line in shown(plan).splitlines() if "MultiheadAttention" in line]
    assert [row.split()[:4] for row in rows] == [
        ["layers.*.self_attn.in_proj_weight", "3", "of", "24x8"],
        ["layers.*.self_attn.out_proj.weight", "3", "of", "8x8"],
    ]


def test_notes_on_equal_layers_share_a_row():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    text = shown(rw.factorization_plan(nn.TransformerEncoder(layer, 3), rank=8))
    rows = [line.split() for line in text.splitlines() if "no fewer parameters than dense" in line]
    assert [row[:4] for row in rows] == [
        ["layers.*.linear1", "3", "of", "16x8"],
        ["layers.*.linear2", "3", "of", "8x16"],
    ]


def test_names_out_of_a_model_are_shown_as_text():
    hostile = nn.ModuleDict({"[red]\x1b[31m": nn.Linear(8, 8), "b": nn.Linear(8, 8)})
    text = shown(rw.factorization_plan(hostile, rank=2))
    assert "[red]?" in text
    assert "\x1b[31m" not in text


def test_multiplications_are_those_of_the_forward_pass():
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    model = CifarResNet(8, projected=True).eval()
    plan = rw.factorization_plan(model, rank=0.2)
    counted = {}
    for way, made in (("dense", model), ("two-step", rw.factorize(model, rank=0.2, execution="two-step").eval())):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            made(torch.randn(1, 3, 32, 32))
        counted[way] = {name: sum(each.values()) // 2 for name, each in counter.get_flop_counts().items()}
    positions = {"layer1": 32 * 32, "layer2": 16 * 16, "layer3": 8 * 8}
    for layer in plan.layers:
        (name,) = layer.names
        pixels = positions[name.split(".")[0]]
        assert counted["dense"][f"CifarResNet.{name}"] == layer.dense_work * pixels
        assert counted["two-step"][f"CifarResNet.{name}"] == layer.work * pixels
