"""Rebalancing changes no output, takes every gap that the gauge can take, and leaves alone what is not its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rankwise as rw
from rankwise.errors import UserError
from rankwise.layers.gauges import NoGauge
from rankwise.layers.linear import FactorizedLinear
from rankwise.layers.readers import Readers
from rankwise.layers.rebalance import balance_
from rankwise.layers.rebalanced import LeftAlone, Moved, Rebalanced
from rankwise.product.balance import balance
from rankwise.product.groups import concatenated
from rankwise.product.pairs import pair_balance
from rankwise.sites.certify.tiny import tiny_models
from rankwise.sites.site import Site

# Plain, fused, grouped, multi-query heads; rotary in halves, as neighbours, partial; biases; cross attention; latents.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "bert": {},
    "gpt2": {},
    "llama": {},
    "qwen2": {},
    "gpt_neox": {},
    "glm": {},
    "falcon": {"multi_query": True, "new_decoder_architecture": False},
    "t5": {},
    "deepseek_v3": {"first_k_dense_replace": 2},
}


def uneven(model: nn.Module) -> nn.Module:
    """The model in float64, with biases that matter and factors that share nothing evenly."""
    generator = torch.Generator().manual_seed(3)
    for parameter in model.double().eval().parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        else:
            scale = torch.rand(parameter.shape[0], 1, generator=generator, dtype=torch.float64) + 0.2
            parameter.data *= scale.reshape(-1, *[1] * (parameter.ndim - 1))
    return model


def tiny(model_type: str) -> nn.Module:
    return uneven(next(iter(tiny_models(model_type, ARCHITECTURES.get(model_type))))[1])


def calls(model: nn.Module, paths: list[str]) -> list[Callable[[], Tensor]]:
    """Every attention module as a function of nothing, on the arguments that the model calls it with."""
    again: list[Callable[[], Tensor]] = []

    def remember(module: nn.Module, args: tuple, kwargs: dict, _: object) -> None:
        args, kwargs = copy.deepcopy((args, kwargs))
        again.append(lambda: _first(module(*copy.deepcopy(args), **copy.deepcopy(kwargs))))

    handles = [model.get_submodule(p).register_forward_hook(remember, with_kwargs=True) for p in dict.fromkeys(paths)]
    words = torch.randint(0, 90, (2, 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        decoder = {"decoder_input_ids": words[:, :5]} if model.config.is_encoder_decoder else {}
        model(input_ids=words, use_cache=False, **decoder)
    for handle in handles:
        handle.remove()
    return again


def _first(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else _first(value[0])


def shares(site: Site, model: nn.Module) -> tuple[Tensor, Tensor]:
    """Half-sum and gap of the middle junction, by the law that holds for the site, heads that share stacked."""
    middle = site.attention.query_factors if site.kind == "qk" else 1
    factors = site.factors[middle - 1 : middle + 1]
    pair = rw.Product(*(factor.view(model.get_parameter(factor.parameter)) for factor in factors))
    for axis in reversed(range(len(pair.batch_shape))):
        if len({factor.shape[axis] for factor in pair.factors}) > 1:
            pair = concatenated(pair, axis)
    found = (
        pair_balance(pair, site.attention.rotary.index())
        if site.kind == "qk" and site.attention.rotary is not None
        else balance(pair)
    )
    return found.half_sum.sum(), found.gap.sum()


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_outputs_stay_gaps_go_and_decay_falls_by_them(model_type: str) -> None:
    model = tiny(model_type)
    sites = [site for site in rw.find(model) if site.attention is not None]
    assert sites
    again = calls(model, [site.attention.module for site in sites])
    with torch.no_grad():
        expected = [call() for call in again]
        before = {site.name: shares(site, model) for site in sites}
        record = balance_(model)
        outputs = [call() for call in again]
    assert not record.left_alone, [each.reason for each in record.left_alone]
    assert {each.site for each in record.moved} == set(before)
    for output, reference in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output, reference, rtol=0, atol=1e-10 * reference.abs().max().item())
    total = 0.0
    for site in sites:
        half_sum, gap = before[site.name]
        after, rest = shares(site, model)
        assert gap / half_sum > 1e-3
        assert rest / after < 1e-24
        torch.testing.assert_close(half_sum - after, gap, rtol=1e-9, atol=0)
        told = record[site.name]
        assert isinstance(told, Moved)
        assert told.before.half_sum == pytest.approx(half_sum.item(), rel=1e-12)
        assert told.before.gap == pytest.approx(gap.item(), rel=1e-9)
        assert told.change < 1e-13
        total += gap.item()
    assert record.drop == pytest.approx(total, rel=1e-9)


def test_rebalancing_twice_is_rebalancing_once() -> None:
    model = tiny("llama")
    balance_(model)
    once = {name: parameter.clone() for name, parameter in model.named_parameters()}
    balance_(model)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, once[name], rtol=0, atol=1e-12 * once[name].abs().max().item())


@pytest.mark.slow
def test_real_weights_keep_their_embeddings(minilm_directory) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.BertModel.from_pretrained(minilm_directory, dtype=torch.float64).eval()
    words = torch.randint(1000, 20000, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(words).last_hidden_state
        record = balance_(model)
        found = model(words).last_hidden_state
    assert len(record.moved) == 12
    assert not record.left_alone
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 * expected.abs().max().item())
    assert min(each.before.relative for each in record.moved) > 0.02
    assert max(each.before.relative for each in record.moved) < 0.09
    assert record.drop / sum(each.before.half_sum for each in record.moved) == pytest.approx(0.0411, abs=1e-4)
    assert max(each.after.relative for each in record.moved) < 1e-20
    narrow = transformers.BertModel.from_pretrained(minilm_directory).eval()
    told = balance_(narrow)
    assert max(each.change for each in told.moved) < 3e-7
    with torch.no_grad():
        rounded = narrow(words).last_hidden_state
    torch.testing.assert_close(rounded.double(), expected, rtol=0, atol=1e-4)


def llama(state: dict[str, Tensor] | None = None, **config: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config.setdefault("tie_word_embeddings", True)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    if state is not None:
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert (missing, unexpected) == (["lm_head.weight"], [])
    return model.double().eval()


def logits_before_and_after(model: nn.Module, vocabulary: int) -> tuple[Tensor, Tensor, Rebalanced]:
    words = torch.randint(3, vocabulary, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = model(words).logits
        record = balance_(model)
        return before, model(words).logits, record


@pytest.mark.slow
def test_real_rotary_weights_keep_their_logits(stories15m_state) -> None:
    """stories15M: queries and keys get a scale for each pair, values and output a matrix."""
    config, state = stories15m_state
    model = llama(state, **{key: value for key, value in config.items() if key not in ("architectures", "model_type")})
    before, after, record = logits_before_and_after(model, 32000)
    assert (len(record.moved), len(record.left_alone)) == (12, 0)
    # What the documentation says of it: of what decay charges, this much was gap.
    assert record.drop / sum(each.before.half_sum for each in record.moved) == pytest.approx(0.0082, abs=1e-4)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-10 * before.abs().max().item())
    for each in record.moved:
        assert each.gauge == ("a scale per pair" if each.site.endswith(".qk") else "a matrix")
        assert each.after.relative < 1e-20 < 1e-5 < each.before.relative
    # What holds for plain heads does not hold here: a matrix between queries and keys would change what is written.
    site = rw.find(model)["layers.0.qk"]
    query = site.factors[0].view(model.get_parameter(site.factors[0].parameter).data)
    key = site.factors[1].view(model.get_parameter(site.factors[1].parameter).data)
    move = torch.linalg.qr(torch.randn(48, 48, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q
    product = site.product(model).dense().detach().clone()
    query.copy_(query @ move)
    key.copy_(move.mT @ key)
    torch.testing.assert_close(site.product(model).dense().detach(), product)
    words = torch.randint(3, 32000, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert (model(words).logits - before).abs().max() > 1e-3 * before.abs().max()


def test_a_whole_model_whose_heads_share_keys_keeps_its_logits() -> None:
    torch.manual_seed(0)
    model = uneven(
        llama(
            vocab_size=90,
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=6,
            num_key_value_heads=2,
            attention_bias=True,
        )
    )
    before, after, record = logits_before_and_after(model, 90)
    assert (len(record.moved), len(record.left_alone)) == (6, 0)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-10 * before.abs().max().item())
    assert max(each.after.relative for each in record.moved) < 1e-20 < 1e-3 < record.moved[0].before.relative
    # The law is of the group: its heads' queries taken together balance the keys that they share.
    site = rw.find(model)["layers.1.ov"]
    assert float(balance(concatenated(site.product(model), 1)).relative.max()) < 1e-20
    assert (
        float(balance(rw.Product(*(f.expand(2, 3, *f.shape[-2:]) for f in site.product(model).factors))).relative.max())
        > 1e-3
    )


def test_normalized_queries_and_keys_are_scaled_only_on_demand() -> None:
    model = tiny("qwen3")
    sites = rw.find(model).select(kind="qk")
    again = calls(model, [site.attention.module for site in sites])
    kept = {name: parameter.clone() for name, parameter in model.named_parameters() if "q_proj" in name}
    record = balance_(model)
    assert {each.site for each in record.left_alone} == set(sites.names)
    assert all("normalized" in each.reason for each in record.left_alone)
    assert all(torch.equal(model.get_parameter(name), tensor) for name, tensor in kept.items())
    expected = [call() for call in again]
    scaled = balance_(model, normalized="scale")
    assert {each.gauge for each in scaled.moved if each.site in sites.names} == {"a scale per head"}
    assert all("epsilon" in each.note for each in scaled.moved if each.site in sites.names)
    for call, reference in zip(again, expected, strict=True):
        # The epsilon of the norm, 1e-6, against mean squares of order one.
        torch.testing.assert_close(call(), reference, rtol=0, atol=1e-4 * reference.abs().max().item())
    for site in sites:
        queries, keys = (factor.double().square().sum((-2, -1)) for factor in site.product(model).factors)
        torch.testing.assert_close(queries.sum(1), keys.sum(1), rtol=1e-6, atol=0)


def multihead(**settings: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(24, 3, batch_first=True, **settings)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double().eval()


@pytest.mark.parametrize("settings", [{}, {"bias": False}, {"kdim": 10, "vdim": 14}])
def test_torch_attention(settings: dict[str, Any]) -> None:
    module = multihead(**settings)
    torch.manual_seed(1)
    widths = 24, settings.get("kdim", 24), settings.get("vdim", 24)
    streams = [torch.randn(2, 5, width, dtype=torch.float64) for width in widths]
    expected = module(*streams)[0]
    record = balance_(module)
    torch.testing.assert_close(module(*streams)[0], expected, rtol=1e-10, atol=1e-10)
    assert {each.gauge for each in record.moved} == {"a matrix"}
    assert max(each.after.relative for each in record.moved) < 1e-24


def test_chosen_sites_alone_are_moved_and_certificates_are_not_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("gpt2")
    certificates = rw.find(model).certify()
    monkeypatch.setattr(rw.Sites, "certify", lambda *_: pytest.fail("certified again"))
    record = balance_(certificates)
    assert len(record.moved) == 4
    monkeypatch.undo()
    model = tiny("gpt2")
    queries = rw.find(model).select(kind="qk")[("layers.0.qk")].product(model).dense().clone()
    values = {name: p.clone() for name, p in model.named_parameters() if "c_proj" in name}
    record = balance_(rw.find(model).select(kind="qk"))
    assert {each.site for each in record.moved} == {"layers.0.qk", "layers.1.qk"}
    assert all(torch.equal(model.get_parameter(name), tensor) for name, tensor in values.items())
    torch.testing.assert_close(rw.find(model)["layers.0.qk"].product(model).dense(), queries)


# ---- what is shared is not touched -----------------------------------------------------------------------------------


class Pair(nn.Module):
    """Two attention modules in a row."""

    def __init__(self, one: nn.Module, two: nn.Module) -> None:
        super().__init__()
        self.one, self.two = one, two

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.one(x, x, x)[0]
        return self.two(hidden, hidden, hidden)[0]


def test_a_module_that_is_used_twice_is_moved_once() -> None:
    shared = multihead()
    model, stream = Pair(shared, shared), torch.randn(2, 5, 24, dtype=torch.float64)
    expected = model(stream)
    record = balance_(model, inputs={"x": stream})
    assert len(record.moved) == 2
    torch.testing.assert_close(model(stream), expected, rtol=1e-10, atol=1e-10)


def test_a_weight_that_two_modules_share_is_refused() -> None:
    one, two = multihead(kdim=24, vdim=23), multihead(kdim=24, vdim=23)
    two.q_proj_weight = one.q_proj_weight
    record = balance_(nn.ModuleDict({"one": one, "two": two}))
    assert {each.site for each in record.left_alone} >= {"one.qk"}
    told = record["one.qk"]
    assert isinstance(told, LeftAlone)
    assert "'one.q_proj_weight' is 'two.q_proj_weight' as well" in told.reason
    assert all(each.site.endswith("ov") for each in record.moved)


def test_one_storage_under_two_parameters_is_shared_too() -> None:
    one, two = multihead(kdim=24, vdim=23), multihead(kdim=24, vdim=23)
    two.q_proj_weight.data = one.q_proj_weight.data
    assert balance_(nn.ModuleDict({"one": one, "two": two}))["one.qk"].reason.endswith(
        "would change what that one does"
    )


def test_a_factor_that_two_products_read_is_refused() -> None:
    model = nn.ModuleDict({"one": FactorizedLinear(6, 5, rank=3)})
    site = rw.find(model)["one.linear"]
    both = rw.Sites([site, site.renamed("again.linear")], source=model)
    readers = Readers(model, dict(model.named_parameters()), both)
    with pytest.raises(NoGauge, match=r"read by another product too: again\.linear"):
        readers.refuse(site, site.factors)
    twice = replace(site, factors=(site.factors[0], site.factors[0]))
    with pytest.raises(NoGauge, match=r"read by another product too: one\.linear, twice"):
        Readers(model, dict(model.named_parameters()), rw.Sites([twice], source=model)).refuse(twice, twice.factors)


def test_names_alone_make_no_factorized_layer() -> None:
    class Squashed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factors = nn.ParameterList([torch.randn(5, 3), torch.randn(3, 4)])

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x @ self.factors[1].mT) @ self.factors[0].mT

    told = balance_(nn.ModuleDict({"up": Squashed()}))["up.linear"]
    assert isinstance(told, LeftAlone)
    assert "something may stand between" in told.reason


# ---- layers and adapters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "depth"), [(4, 0), (4, 1), (4, 2), (12, 0), (12, 1)])
def test_factorized_layers_keep_their_weight_and_balance_at_every_junction(rank: int, depth: int) -> None:
    layer = FactorizedLinear(9, 7, rank=rank, depth=depth, overcomplete=rank > 7, init=nn.init.kaiming_normal_).double()
    layer.factors[0].data *= 30
    weight = layer.weight.detach().clone()
    told = balance_(nn.Sequential(layer))["0.linear"]
    assert isinstance(told, Moved)
    torch.testing.assert_close(layer.weight, weight, rtol=0, atol=1e-11 * weight.abs().max().item())
    assert told.after.half_sum < told.before.half_sum
    if rank <= 7:
        assert told.after.relative < 1e-11
        values = torch.linalg.svdvals(weight)[:rank]
        squares = sum(factor.square().sum() for factor in layer.factors).item()
        assert squares == pytest.approx((depth + 2) * values.pow(2 / (depth + 2)).sum().item(), rel=1e-9)


def test_the_layer_itself_may_be_the_model() -> None:
    for layer in (
        FactorizedLinear(9, 7, rank=4),
        rw.FactorizedConv2d(4, 6, 3, rank=4),
        rw.FactorizedEmbedding(9, 7, rank=4),
    ):
        for factor in layer.factors:
            nn.init.normal_(factor)
        (moved,) = balance_(layer)
        assert isinstance(moved, Moved)
        assert moved.after.relative < 1e-10 < moved.before.relative


def test_adapters_that_have_learned_are_balanced_and_new_ones_are_not_killed() -> None:
    peft = pytest.importorskip("peft")
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5)).double()
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=3, target_modules=["0", "2"]))
    layers = adapted.base_model.model
    with torch.no_grad():
        layers[0].lora_B["default"].weight.normal_(std=20)
    first = layers[2].lora_A["default"].weight.clone()
    stream = torch.randn(4, 8, dtype=torch.float64)
    expected = adapted(stream)
    record = balance_(adapted)
    torch.testing.assert_close(adapted(stream), expected, rtol=1e-11, atol=1e-11)
    (moved,), (left,) = record.moved, record.left_alone
    assert moved.after.relative < 1e-24 < moved.before.relative
    assert "the product is zero" in left.reason
    assert torch.equal(layers[2].lora_A["default"].weight, first)


# ---- records and refusals --------------------------------------------------------------------------------------------


def test_the_record_prints_everything() -> None:
    from rich.console import Console

    model = tiny("qwen3")
    record = balance_(model)
    console = Console(width=100, file=StringIO())
    console.print(record)
    text = console.file.getvalue()
    for site in rw.find(model).select(kind={"qk", "ov"}):
        assert site.name in text
    assert "normalized" in text
    assert repr(record) == "Rebalanced(2 products; 2 left alone, 0 unread)"
    assert len(record) == 4
    empty = balance_(nn.Linear(3, 4))
    assert isinstance(empty, Rebalanced)
    assert len(empty) == 0


def test_weights_that_are_not_finite_are_left_alone() -> None:
    module = multihead()
    with torch.no_grad():
        module.in_proj_weight[0, 0] = torch.nan
    certificates = rw.find(multihead()).certify()
    certificates.sites.source = module
    record = balance_(certificates)
    assert [each.reason for each in record.left_alone] == ["a factor holds NaN or Inf"]
    assert [each.site for each in record.moved] == ["attention.ov"]


def test_what_cannot_be_moved_is_refused_in_one_line() -> None:
    module = multihead()
    with pytest.raises(UserError, match="needs the live model"):
        balance_(rw.find(module.state_dict()))
    with pytest.raises(UserError, match="takes a model, its sites or its certificates, got dict"):
        balance_(dict(module.state_dict()))  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="'estimate'"):
        balance_(module, second_moments="keep")  # pyright: ignore[reportArgumentType]
    with torch.device("meta"):
        bare = nn.Sequential(FactorizedLinear(4, 4, rank=2))
    with pytest.raises(UserError, match="meta device"):
        balance_(bare)
