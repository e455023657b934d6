"""What a decay may act on, and the one line that says why not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rankwise.decay.frobenius import FrobeniusDecay
from rankwise.decay.products import collect, covered, per_parameter, shared
from rankwise.errors import UserError
from rankwise.sites.certify.tiny import tiny_models
from rankwise.sites.find import find
from tests.decay import models
from tests.sites.models import GPT2, gpt2_shapes, state


def sequence(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 2), *between, nn.Linear(2, 3))


@pytest.mark.parametrize("between", [nn.ReLU(), nn.LayerNorm(2), nn.BatchNorm1d(2), nn.Sequential(nn.Tanh())])
def test_a_nonlinearity_or_a_norm_between_the_factors_is_refused(between: nn.Module) -> None:
    kind = type(between).__name__
    with pytest.raises(UserError, match=f"{kind} stands between the linear layers") as raised:
        FrobeniusDecay(sequence(between), coefficient=0.1)
    assert "\n" not in str(raised.value)


def test_what_passes_everything_on_may_stand_between() -> None:
    assert len(collect(sequence(nn.Dropout(), nn.Identity())).products) == 1
    # Three layers are one chain, and what stands around them does not matter.
    whole = nn.Sequential(nn.ReLU(), nn.Linear(5, 4), nn.Linear(4, 2), nn.Linear(2, 3), nn.ReLU())
    assert collect(whole).products[0].shapes == ((3, 2), (2, 4), (4, 5))


def test_normalized_queries_and_keys_are_refused() -> None:
    _, model = next(iter(tiny_models("qwen3")))
    sites = find(model)
    with pytest.raises(UserError, match=r"a normalization stands between the factors of layers.0.qk"):
        FrobeniusDecay(sites.select(kind="qk"))
    FrobeniusDecay(sites.select(kind="ov"))


def test_a_model_without_products_and_a_selection_that_fits_none() -> None:
    with pytest.raises(UserError, match="no product of two or more factors and no tensorized layer in Linear"):
        FrobeniusDecay(nn.Linear(3, 3))
    with pytest.raises(UserError, match=r"the model has none, or the selection fits none"):
        FrobeniusDecay(find(models.llama()).select(kind="lora"))
    for target in (None, 3, [], [1]):
        with pytest.raises((UserError, TypeError)):
            FrobeniusDecay(target)
    with pytest.raises(UserError, match="a decay acts on Sites or on modules, got nothing"):
        FrobeniusDecay([])


def test_decay_needs_live_parameters() -> None:
    stored = state(gpt2_shapes())
    sites = find(stored, config=GPT2).select(kind="qk")
    with pytest.raises(UserError, match=r"needs live parameters, and these sites were found in a .*: give model="):
        FrobeniusDecay(sites)
    model = models.gpt2()
    assert len(FrobeniusDecay(sites, model=model).products) == 2
    with pytest.raises(
        UserError, match=r"h.0.attn.c_attn.weight of the site h.0.qk|is no parameter of the given model"
    ):
        FrobeniusDecay(sites, model=models.llama())
    with pytest.raises(UserError, match="model= says where the parameters of Sites are"):
        FrobeniusDecay(model, model=model)


def test_types_that_have_no_gradient_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[0].weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.complex64))
    with pytest.raises(UserError, match=r"0.weight of chain is torch.complex64: only real floating"):
        FrobeniusDecay(model)


def test_parameters_sharded_over_devices_are_refused_in_one_line(tmp_path) -> None:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False))
        model[0].weight = nn.Parameter(distribute_tensor(model[0].weight.detach(), mesh, [Shard(0)]))
        with pytest.raises(UserError, match=r"0.weight of chain is sharded over devices \(DTensor\)") as raised:
            FrobeniusDecay(model)
        assert "\n" not in str(raised.value)
    finally:
        distributed.destroy_process_group()


def test_several_modules_keep_their_names_apart() -> None:
    decay = FrobeniusDecay([models.chain(4, 2, 3), models.chain(5, 2, 3, seed=1)])
    assert sorted(live.name for live in decay.products) == ["0.up.linear", "1.up.linear"]


def test_views_follow_the_parameters_storage() -> None:
    model = models.chain(4, 2, 3)
    (live,) = collect(model).products
    first = live.views()[0]
    assert live.views()[0] is first
    model.half()
    moved = live.views()[0]
    assert moved.dtype == torch.float16
    moved.zero_()
    assert not model.get_parameter("up.factors.0").any()
    copy = torch.ones_like(model.get_parameter("up.factors.0"))
    live.like(0, copy)[0] = 0
    assert copy.sum() == copy.numel() - copy.shape[1]


def test_what_is_covered_and_what_is_shared() -> None:
    model = models.gpt2()
    products = collect(models.products(model, "qk")).products
    places = per_parameter(products)
    fused = model.get_parameter("h.0.attn.c_attn.weight")
    mask = covered(fused, places[fused])
    assert mask[:, :30].all()
    assert not mask[:, 30:].any()
    assert shared(products) == set()
    assert shared([*products, products[0]]) == {fused}
    assert not products[0].overlaps
