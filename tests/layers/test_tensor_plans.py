"""Tensor forms in the place of a whole model's weights: the plan, what it leaves dense, and the way back."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import rankwise as rw
from rankwise.errors import UserError
from rankwise.sites.singles import is_matrix
from tests.layers.nets import CifarResNet, on_meta, parameters
from tests.layers.test_planning import shown

FORMS = ("cp", "tucker", "tensor-train")
WITHOUT_DECOMPOSITION = nn.init.normal_


def images() -> torch.Tensor:
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class House(nn.Module):
    """What a tensor form can be put into, and what it cannot."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.pytorch_utils import Conv1D

        self.words = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.words.weight
        self.places = nn.Embedding(9, 8)
        self.twice = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.twice.weight
        self.input_first = Conv1D(16, 8)
        self.up = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.kernel = nn.Conv2d(4, 6, 3)
        self.grouped = nn.Conv2d(4, 6, 3, groups=2)
        self.attention = nn.MultiheadAttention(8, 2)


@pytest.mark.parametrize("form", FORMS)
def test_every_matrix_is_planned_or_listed_with_a_reason(form) -> None:
    pytest.importorskip("transformers")
    house = House()
    plan = rw.factorization_plan(house, form=form, rank=0.5, select=lambda name, module: True)
    assert {layer.names: layer.kind for layer in plan.layers} == {("up",): "linear", ("kernel",): "conv"}
    own, heads = (
        "and cores are one layer's own: a product can be shared",
        "rankwise.shrink_heads gives it smaller heads",
    )
    assert {each.parameter: each.reason for each in plan.dense} == {
        "words.weight": f"it is tied to head, {own}",
        "twice.weight": f"it is tied to again, {own}",
        "places.weight": "its layer is of type Embedding, which has no tensor form: it can be a product",
        "input_first.weight": "its layer is of type Conv1D, which has no tensor form: it can be a product",
        "grouped.weight": "its convolution has 2 groups: a product for each group",
        "attention.in_proj_weight": f"it belongs to a MultiheadAttention: {heads}",
        "attention.out_proj.weight": f"it belongs to a MultiheadAttention: {heads}",
    }
    told = {id(house.get_parameter(each.parameter)) for each in plan.dense}
    told |= {id(house.get_parameter(f"{layer.names[0]}.weight")) for layer in plan.layers}
    assert told == {id(each) for each in house.parameters() if is_matrix(tuple(each.shape))}
    small = plan.apply(house)
    assert parameters(small) == plan.parameters
    assert (type(small.up), type(small.kernel)) == (rw.TensorizedLinear, rw.TensorizedConv2d)
    assert small.head.weight is small.words.weight
    assert small.again.weight is small.twice.weight


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("budget", [0.3, 30_000])
def test_a_budget_is_kept_and_collapsing_keeps_the_function(form, budget) -> None:
    model = CifarResNet(8).double().eval()
    plan = rw.factorization_plan(model, form=form, budget=budget, init=WITHOUT_DECOMPOSITION)
    small = rw.factorize(model, form=form, budget=budget, init=WITHOUT_DECOMPOSITION)
    assert sum(isinstance(module, rw.TensorizedConv2d) for module in small.modules()) == 6
    allowed = budget if isinstance(budget, int) else budget * parameters(model)
    assert 0.9 * allowed < parameters(small) == plan.parameters <= allowed
    for layer in plan.layers:
        made = small.get_submodule(layer.names[0])
        assert (made.ranks, made.modes, made.form) == (layer.rank, layer.shape, form)
        assert layer.parameters == made.tensor.parameters
    folded = rw.collapse(small)
    assert folded.state_dict().keys() == model.state_dict().keys()
    torch.testing.assert_close(folded(images()), small(images()))
    assert type(model.layer1[0].conv1) is nn.Conv2d


@pytest.mark.parametrize("form", ["tucker", "tensor-train"])
def test_at_full_ranks_the_model_is_as_it_was(form) -> None:
    torch.manual_seed(0)
    model = CifarResNet(8, widths=(4, 6, 8)).double().eval()
    torch.testing.assert_close(rw.factorize(model, form=form, rank=1.0)(images()), model(images()))


def linears() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4))


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (0.5, {"0": (4, 2), "2": (3, 2)}),
        (3, {"0": (3, 3), "2": (3, 3)}),
        ((5, 4), {"0": (5, 4), "2": (5, 4)}),
        ({"2": (2, 1), "*": 0.25}, {"0": (2, 1), "2": (2, 1)}),
        ({"0": [4, 2]}, {"0": (4, 2)}),
    ],
)
def test_ranks_as_shares_numbers_and_one_for_each_cut(rank, expected) -> None:
    plan = rw.factorization_plan(linears(), form="tensor-train", rank=rank)
    assert plan.ranks == expected
    assert rw.factorization_plan(linears(), form="tensor-train", rank=plan.ranks).layers == plan.layers


def test_layers_too_thin_for_one_rank_for_all_stay_dense_and_say_so() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(4, 4), nn.Linear(16, 16))
    plan = rw.factorization_plan(model, form="tensor-train", rank=4)
    assert list(plan.ranks) == ["0", "2"]
    (thin,) = plan.dense
    assert thin.reason.startswith("rank 4 at position 1 of a tensor-train form of modes 4x2x2 is above 2")
    with pytest.raises(UserError, match=r"^1: rank 4 at position 1 of a tensor-train form of modes 4x2x2 is above 2"):
        rw.factorization_plan(model, form="tensor-train", rank=4, select="*")


@pytest.mark.parametrize("form", FORMS)
def test_multiplications_are_those_of_the_forward_pass(form) -> None:
    torch.manual_seed(0)
    model = CifarResNet(8, projected=True).eval()
    plan = rw.factorization_plan(model, form=form, rank=0.3, execution="two-step", init=WITHOUT_DECOMPOSITION)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        plan.apply(model).eval()(torch.randn(1, 3, 32, 32))
    counted = {name: sum(each.values()) // 2 for name, each in counter.get_flop_counts().items()}
    positions = {"layer1": 32 * 32, "layer2": 16 * 16, "layer3": 8 * 8}
    for layer in plan.layers:
        (name,) = layer.names
        # Tucker forms its middle kernel from the window's two small matrices first, whatever the input is.
        forming = 0 if form != "tucker" else _tucker_forming(layer.rank, layer.shape)
        expected = layer.work * positions[name.split(".")[0]]
        assert expected <= counted[f"CifarResNet.{name}"] <= expected + forming, name


def _tucker_forming(ranks, modes) -> int:
    out, down, across, into = ranks
    return out * down * across * into * modes[1] + out * modes[1] * across * into * modes[2]


def test_a_plan_of_a_model_without_values() -> None:
    plan = rw.factorization_plan(on_meta(CifarResNet, 8), form="tucker", rank=0.25)
    assert parameters(plan.apply(on_meta(CifarResNet, 8))) == plan.parameters


def test_a_tensor_form_is_measured_too(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(32, 32), nn.Linear(32, 3))
    plan = rw.factorization_plan(
        model, form="tensor-train", rank=0.3, measure_on=torch.randn(2, 3, 6, 6), init=WITHOUT_DECOMPOSITION
    )
    kernel, linear = plan.layers
    assert plan.apply(model)[1].execution == kernel.timing.faster
    # A linear layer has one way: its weight is rebuilt.
    assert (linear.timing.two_step, linear.timing.faster) == (float("inf"), "one-step")
    assert 0 < linear.timing.share < float("inf")
    print(plan)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    ((name, *_, share, way),) = (line.split() for line in lines if "8x8x3x3" in line)
    assert (name, share, way) == ("1", f"{kernel.timing.share:.2f}", kernel.timing.faster)


def test_the_tables_fit_a_narrow_terminal_and_tell_the_ranks(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print(rw.factorization_plan(on_meta(CifarResNet, 20), form="tucker", budget=0.3))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines if line.startswith(" layer") and "x3x3x" in line]
    assert len(rows) == 18  # none is broken in two
    assert lines[0].rstrip().endswith(", tucker")
    assert all(len(row[2].split("x")) == 4 for row in rows)
    assert "stays dense" in {line.strip() for line in lines}
    text = shown(rw.factorization_plan(linears(), form="tensor-train", rank=0.5))
    assert "4x2 " in text
    assert "512 1.00" in text
    assert "modes 8x8x4, rebuilt in every pass" in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give one of budget=, rank= and energy="),
        ({"rank": 0.1, "budget": 0.1}, "give one of budget=, rank= and energy="),
        ({"rank": 2.0}, "layer1.0.conv1: a rank scale is above 0 and at most 1, got 2.0"),
        ({"rank": -1.0}, "a rank given as a share of the largest one must be a finite number above 0"),
        ({"rank": 0}, "layer1.0.conv1: a tensor-train form of modes 16x3x3x16 takes 3 ranks of at least 1"),
        ({"rank": "8"}, "layer1.0.conv1: a tensor-train form of modes 16x3x3x16 takes 3 ranks of at least 1"),
        ({"rank": {"*": None}}, "layer1.0.conv1: a tensor-train form .* takes 3 ranks of at least 1"),
        ({"rank": (4, 4)}, "layer1.0.conv1: a tensor-train form of modes 16x3x3x16 takes 3 ranks"),
        ({"budget": 0.0}, "budget must be a share of the parameters"),
        ({"budget": 0.001}, r"a budget of 75 parameters .* cannot be met: with rank 1 in every selected layer"),
        ({"rank": 0.1, "select": "nothing"}, "select='nothing' matches none"),
        ({"rank": 0.1, "depth": 1}, "depth= has no meaning for form='tensor-train': it has no inner factors"),
        ({"energy": 0.9}, "energy= has no meaning for form='tensor-train': its ranks belong to no single spectrum"),
        ({"rank": 0.1, "overcomplete": True}, "overcomplete= has no meaning for form='tensor-train'"),
        ({"rank": 0.1, "rule": rw.layers.ranks.PAPER_RULE}, "rule= has no meaning for form='tensor-train'"),
        ({"rank": 0.1, "init": "ones"}, "a tensor form has no singular values to set"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(settings, message) -> None:
    with pytest.raises(UserError, match=message) as caught:
        rw.factorize(on_meta(CifarResNet, 8), **{"form": "tensor-train", **settings})
    assert "\n" not in str(caught.value)


def test_a_way_that_linear_layers_do_not_have_leaves_them_dense() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(8, 8), nn.Linear(8, 8))
    plan = rw.factorization_plan(model, form="cp", rank=0.5, execution="two-step")
    assert list(plan.ranks) == ["1"]
    assert "and execution='two-step' was asked for" in plan.dense[0].reason


def test_a_plan_for_another_kind_of_layer_is_refused() -> None:
    plan = rw.factorization_plan(nn.Linear(8, 8), form="cp", rank=0.5)
    with pytest.raises(UserError, match="its layer is of type Embedding, which has no cp form: plan for this model"):
        plan.apply(nn.Embedding(8, 8))


def test_what_would_have_been_chosen_is_told_first() -> None:
    """Of GPT-2 all feed-forward layers are `Conv1D`; that the attention stays dense is no reason for the refusal."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=30, bos_token_id=0, eos_token_id=0)
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(config)
    with pytest.raises(
        UserError, match=r"6 matrices stay dense, such as transformer\.wte\.weight .it is tied to lm_head"
    ):
        rw.factorize(model, form="tucker", rank=0.5)


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(UserError, match=r"nothing to factorize: 1 matrices stay dense, such as weight .* Embedding"):
        rw.factorize(nn.Embedding(9, 8), form="cp", rank=0.5)
