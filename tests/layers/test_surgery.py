"""Factorizing and folding back: copies that compute the same, share what was shared, and travel as files."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn

import rankwise as rw
from rankwise.errors import UserError
from tests.layers.draws import generator
from tests.layers.nets import CifarResNet


def images(*batch: int) -> torch.Tensor:
    return torch.randn(*batch, 3, 16, 16, generator=generator(1), dtype=torch.float64)


class Reader(nn.Module):
    """A small language model whose embedding is its head, with one layer used twice and mentioned in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8, padding_idx=0)
        block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(block, 2)
        self.shared = nn.Linear(8, 8)
        self.again = self.shared
        self.mentioned = [self.shared]
        self.head = nn.Linear(8, 20)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.body(self.words(tokens))
        return self.head(self.mentioned[0](self.again(self.shared(hidden))))


def reader() -> Reader:
    torch.manual_seed(0)
    return Reader().double()


TOKENS = torch.tensor([[3, 7, 0, 2], [1, 1, 19, 4]])


@pytest.mark.parametrize("form", ["spatial", "channel"])
@pytest.mark.parametrize("depth", [0, 1])
def test_at_full_rank_nothing_changes_and_folding_gives_the_dense_net_back(form, depth):
    torch.manual_seed(0)
    model = CifarResNet(8, projected=True).double().eval()
    before = copy.deepcopy(model.state_dict())
    net = rw.factorize(model, rank=1.0, form=form, depth=depth)
    assert sum(isinstance(module, rw.FactorizedConv2d) for module in net.modules()) == 8
    torch.testing.assert_close(net(images(2)), model(images(2)))
    folded = rw.collapse(net)
    assert folded.state_dict().keys() == before.keys()
    for name, value in folded.state_dict().items():
        torch.testing.assert_close(value, before[name], atol=1e-13, rtol=1e-12)
    # The model that was given is as it was.
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_folding_keeps_the_function_at_any_rank():
    torch.manual_seed(0)
    net = rw.factorize(CifarResNet(8).double(), budget=0.2).eval()
    torch.testing.assert_close(rw.collapse(net)(images(2)), net(images(2)), atol=1e-12, rtol=1e-10)


def test_tied_and_shared_weights_survive():
    model = reader()
    net = rw.factorize(model, rank=1.0)
    torch.testing.assert_close(net(TOKENS), model(TOKENS))
    assert net.head.factors[0] is net.words.factors[0]
    assert net.head.factors[1] is net.words.factors[1]
    assert net.shared is net.again
    assert net.mentioned[0] is net.shared
    assert not torch.equal(net.head.bias, torch.zeros(20))
    torch.testing.assert_close(net.head.weight, net.words.weight)
    parts = sum(parameter.numel() for parameter in net.parameters())
    assert parts == rw.factorization_plan(model, rank=1.0).parameters
    folded = rw.collapse(net)
    assert folded.head.weight is folded.words.weight
    assert folded.shared is folded.again
    torch.testing.assert_close(folded(TOKENS), model(TOKENS))
    assert folded.state_dict().keys() == model.state_dict().keys()


def test_tied_factors_stay_tied_while_training():
    net = rw.factorize(reader(), rank=4)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        net(TOKENS).square().mean().backward()
        optimizer.step()
    assert net.head.factors[0] is net.words.factors[0]
    torch.testing.assert_close(net.head.weight, net.words.weight)
    assert rw.find(net)["words.linear"].parameters == ("words.factors.0", "words.factors.1")
    assert "head.linear" not in rw.find(net)


@pytest.mark.parametrize("wide", [False, True])
def test_a_tied_embedding_keeps_its_padding_row(wide):
    model = reader()
    model.words.weight.data[0] = 0
    net = rw.factorize(model, rank=12 if wide else 4, overcomplete=wide, select=["words", "head"])
    assert torch.equal(net.words(torch.tensor([0])), torch.zeros(1, 8, dtype=torch.float64))


def test_the_fast_path_of_torchs_encoder_reads_the_product():
    model = reader().eval()
    net = rw.factorize(model, rank=1.0)
    with torch.no_grad():
        torch.testing.assert_close(net.body(model.words(TOKENS)), model.body(model.words(TOKENS)))


def test_modes_types_and_what_is_frozen_are_kept():
    model = CifarResNet(8).bfloat16().eval()
    model.layer1.requires_grad_(False)
    net = rw.factorize(model, rank=0.3)
    assert not any(module.training for module in net.modules())
    assert {parameter.dtype for parameter in net.parameters()} == {torch.bfloat16}
    assert not any(parameter.requires_grad for parameter in net.layer1.parameters())
    assert all(parameter.requires_grad for parameter in net.layer2.parameters())
    folded = rw.collapse(net)
    assert not any(parameter.requires_grad for parameter in folded.layer1.parameters())
    assert not folded.training


def test_a_model_on_the_meta_device_stays_there():
    with torch.device("meta"):
        model = CifarResNet(8)
    net = rw.factorize(model, rank=0.3)
    assert all(parameter.is_meta for parameter in net.parameters())


def test_the_layer_itself_may_be_the_model():
    layer = nn.Linear(6, 5)
    net = rw.factorize(layer, rank=5)
    assert isinstance(net, rw.FactorizedLinear)
    assert isinstance(rw.collapse(net), nn.Linear)


def test_factorizing_twice_leaves_what_is_a_product():
    once = rw.factorize(CifarResNet(8), rank=0.3, select="layer1.*")
    twice = rw.factorize(once, rank=0.3, select="layer2.*")
    assert isinstance(twice.layer1[0].conv1, rw.FactorizedConv2d)
    assert isinstance(twice.layer2[0].conv1, rw.FactorizedConv2d)
    reasons = {each.reason for each in rw.factorization_plan(once, rank=0.3).dense}
    assert "it is a factor of a FactorizedConv2d already" in reasons


def test_round_trip_through_files(tmp_path):
    torch.manual_seed(0)
    net = rw.factorize(CifarResNet(8), rank=0.3, depth=1).eval()
    fresh = rw.factorize(CifarResNet(8), rank=0.3, depth=1, init=nn.init.normal_).eval()
    torch.save(net.state_dict(), tmp_path / "net.pt")
    fresh.load_state_dict(torch.load(tmp_path / "net.pt", weights_only=True))
    assert torch.equal(fresh(images(2).float()), net(images(2).float()))
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    stored = load_file(tmp_path / "net.safetensors")
    assert all(torch.equal(stored[name], value) for name, value in net.state_dict().items())
    # A file of factors is read as products, without the model.
    sites = rw.find(stored)
    assert [site.name for site in sites if len(site.factors) == 3] == [
        f"layer{stage}.0.conv{place}.conv" for stage in (1, 2, 3) for place in (1, 2)
    ]
    with rw.open_checkpoint(tmp_path / "net.safetensors") as checkpoint:
        product = rw.find(checkpoint)["layer2.0.conv1.conv"].product(checkpoint)
    torch.testing.assert_close(product.dense(), net.layer2[0].conv1.product.dense())


def test_tied_factors_in_safetensors(tmp_path):
    net = rw.factorize(reader(), rank=4)
    save_model(net, tmp_path / "net.safetensors")
    fresh = rw.factorize(reader(), rank=4, init=nn.init.normal_)
    load_model(fresh, tmp_path / "net.safetensors")
    assert torch.equal(fresh(TOKENS), net(TOKENS))


def test_regular_start_and_ones():
    torch.manual_seed(0)
    model = CifarResNet(20)
    regular = rw.factorize(model, rank=0.3, init=nn.init.kaiming_normal_).layer3[1].conv1
    assert regular.factors[0].std().item() == pytest.approx((2 / regular.rank) ** 0.5, rel=0.05)
    ones = rw.factorize(model, rank=0.3, init="ones").layer3[1].conv1
    values = ones.product.spectrum().values
    torch.testing.assert_close(values, torch.ones_like(values), atol=1e-5, rtol=0)
    drawn = rw.factorize(model, rank=1.0, init=rw.Spectral(draw=nn.init.kaiming_normal_)).layer3[1].conv1
    assert drawn.weight.std().item() == pytest.approx((2 / 576) ** 0.5, rel=0.03)


def test_a_plan_fits_the_model_it_was_made_for_alone():
    plan = rw.factorization_plan(CifarResNet(8), rank=0.3)
    assert isinstance(plan.apply(CifarResNet(8)).layer1[0].conv1, rw.FactorizedConv2d)
    with pytest.raises(
        UserError, match=r"expects a weight of shape \(16, 16, 3, 3\) at 'layer1.0.conv1', and finds a "
    ):
        plan.apply(CifarResNet(8, widths=(8, 16, 32)))
    with pytest.raises(UserError, match=r"the plan names a layer 'layer1\.0\.conv1', which this model has not"):
        plan.apply(nn.Linear(3, 3))
    with pytest.raises(UserError, match="finds a FactorizedConv2d: plan for this model"):
        plan.apply(plan.apply(CifarResNet(8)))


def test_a_plan_does_not_part_weights_that_were_tied_since():
    def net():
        return nn.Sequential(nn.Linear(16, 16, bias=False), nn.ReLU(), nn.Linear(16, 16, bias=False), nn.Linear(16, 4))

    plan, tied = rw.factorization_plan(net(), rank=4), net()
    tied[2].weight = tied[0].weight
    with pytest.raises(UserError, match="a weight of '0', which in this model is one of '0' and '2': plan for this"):
        plan.apply(tied)
    with pytest.raises(UserError, match="a weight of '0' and '2', which in this model is one of '0': plan for this"):
        rw.factorization_plan(tied, rank=4).apply(net())


def test_folding_a_dense_model_warns():
    with pytest.warns(UserWarning, match="collapse has no effect: the model has no factorized layers"):
        rw.collapse(nn.Linear(3, 3))
