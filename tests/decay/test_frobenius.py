"""Frobenius decay is weight decay of the product multiplied out, at whatever the factors are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarks.decay import Temporaries
from rankwise.decay.frobenius import FrobeniusDecay
from rankwise.product.product import Product
from rankwise.sites.certify.tiny import tiny_models
from tests.decay import models

CASES = {
    "heads of a fused tensor": (models.gpt2, ("qk", "ov")),
    "grouped heads": (models.llama, ("qk", "ov")),
    "an adapter": (models.adapter, "lora"),
    "two factors": (lambda: models.chain(9, 3, 7), "linear"),
    "three factors": (lambda: models.chain(9, 3, 4, 7), "linear"),
    "four factors, one narrow": (lambda: models.chain(9, 5, 2, 4, 7), "linear"),
    "inner widths above the outer": (lambda: models.chain(3, 9, 4), "linear"),
    "wide and deep": (lambda: models.chain(3, 9, 8, 4), "linear"),
    "single matrices": (models.gpt2, ("mlp", "embed")),
}


def half_square(dense: Tensor) -> Tensor:
    return dense.square().sum((-2, -1)) / 2


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_dense_product(case: str) -> None:
    make, kind = CASES[case]
    model = make()
    sites = models.products(model, kind)
    assert len(sites)
    before = models.fill_gradients(model)
    FrobeniusDecay(sites, coefficient=0.3).add_gradients()
    expected = models.dense_gradients(model, sites, half_square)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, before[name] + 0.3 * expected[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_decoupled_steps_move_all_factors_from_where_they_were(case: str) -> None:
    make, kind = CASES[case]
    model = make()
    sites = models.products(model, kind)
    expected = models.dense_gradients(model, sites, half_square)
    start = {name: each.detach().clone() for name, each in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    FrobeniusDecay(sites, coefficient=0.02, decoupled=True).attach(optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), start[name] - 0.002 * expected[name], rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["gpt_neox", "falcon", "bloom", "phi3", "t5", "bert", "gpt_bigcode", "bart"])
def test_real_architectures_fused_and_interleaved(model_type: str) -> None:
    """Queries, keys and values as these models store them, in float64."""
    _, model = next(iter(tiny_models(model_type)))
    model = model.double()
    sites = models.products(model, ("qk", "ov"))
    assert len(sites) >= 4
    before = models.fill_gradients(model)
    FrobeniusDecay(sites, coefficient=0.3).add_gradients()
    expected = models.dense_gradients(model, sites, half_square)
    assert any(bool(each.any()) for each in expected.values())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, before[name] + 0.3 * expected[name], rtol=1e-8, atol=1e-8, msg=name)


@pytest.mark.parametrize("make", [models.gpt2, models.llama, models.adapter, models.Tensorized])
def test_gradients_are_the_slopes_of_the_penalty(make) -> None:
    """Central differences of the number that is logged, along a random direction."""
    model = make()
    decay = FrobeniusDecay(nn.Sequential(model), coefficient=1.0)
    generator = torch.Generator().manual_seed(9)
    directions = {each: torch.randn(each.shape, generator=generator, dtype=torch.float64) for each in decay.parameters}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    decay.add_gradients()
    slope = sum(float((each.grad * direction).sum()) for each, direction in directions.items())
    values = []
    with torch.no_grad():
        for step in (1e-5, -2e-5):
            for parameter, direction in directions.items():
                parameter += step * direction
            values.append(decay.penalty().item())
    assert (values[0] - values[1]) / 2e-5 == pytest.approx(slope, rel=1e-6)


def test_tensorized_modules_decay_by_their_own_closed_form() -> None:
    module = models.Tensorized()
    models.fill_gradients(module)
    before = [core.grad.clone() for core in module.cores]
    bias = module.bias.grad.clone()
    decay = FrobeniusDecay(nn.Sequential(module), coefficient=0.3)
    assert set(decay.parameters.values()) == {"0.cores.0", "0.cores.1", "0.cores.2"}
    decay.add_gradients()
    value = module.form.dense().square().sum() / 2
    expected = torch.autograd.grad(value, list(module.cores))
    for core, old, gradient in zip(module.cores, before, expected, strict=True):
        torch.testing.assert_close(core.grad, old + 0.3 * gradient, rtol=1e-10, atol=1e-10)
    assert torch.equal(module.bias.grad, bias)
    assert decay.penalty().item() == pytest.approx(value.item(), rel=1e-12)


def test_a_sequence_of_linear_layers_is_one_product() -> None:
    layer = nn.Sequential(nn.Linear(6, 2, bias=False), nn.Dropout(0.1), nn.Linear(2, 5)).double()
    dense = layer[2].weight @ layer[0].weight
    expected = torch.autograd.grad(half_square(dense).sum(), [layer[2].weight, layer[0].weight])
    decay = FrobeniusDecay(layer, coefficient=1.0)
    assert decay.penalty().item() == pytest.approx(half_square(dense).item(), rel=1e-12)
    models.fill_gradients(layer)
    before = [layer[place].weight.grad.clone() for place in (2, 0)]
    decay.add_gradients()
    for place, old, gradient in zip((2, 0), before, expected, strict=True):
        torch.testing.assert_close(layer[place].weight.grad, old + gradient)


def test_queries_tied_to_keys_count_both_sides() -> None:
    """`W = A A^T` from one parameter: both factors move the same entries, from where they were."""
    from rankwise.sites.factor import Factor
    from rankwise.sites.site import Site
    from rankwise.sites.sites import Sites

    model = models.Tree(models.state({"shared": (6, 4)}))
    factors = (Factor("shared", "a b -> a b"), Factor("shared", "a b -> b a"))
    sites = Sites([Site(name="tied", kind="qk", factors=factors, shape=(6, 6))], source=model)
    expected = models.dense_gradients(model, sites, half_square)["shared"]
    start = model.shared.detach().clone()
    model.shared.grad = torch.zeros_like(model.shared)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    FrobeniusDecay(sites, coefficient=0.1, decoupled=True).attach(optimizer)
    optimizer.step()
    torch.testing.assert_close(model.shared.detach(), start - 0.01 * expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_short_types_are_computed_in_float32(dtype: torch.dtype) -> None:
    model = models.chain(40, 6, 30).to(dtype)
    sites = models.products(model, "linear")
    expected = models.dense_gradients(model.double(), models.products(model, "linear"), half_square)
    model.to(dtype)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    FrobeniusDecay(sites, coefficient=1.0, model=model).add_gradients()
    for name, parameter in model.named_parameters():
        assert parameter.grad.dtype == dtype
        # One rounding of the result to the gradient's type, and float32 inside.
        scale = expected[name].abs().max()
        error = (parameter.grad.double() - expected[name]).abs().max() / scale
        assert error < torch.finfo(dtype).eps


def test_parameters_that_moved_to_another_type_are_followed() -> None:
    model = models.llama()
    decay = FrobeniusDecay(models.products(model, "ov"), coefficient=1.0)
    value = decay.penalty().item()
    decay.add_gradients()
    model.float()
    assert decay.penalty().item() == pytest.approx(value, rel=1e-6)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    decay.add_gradients()
    assert model.layers.get_submodule("0").self_attn.v_proj.weight.grad.abs().max() > 0


def test_gradients_of_a_stack_are_those_of_the_penalty() -> None:
    from rankwise.product.penalties import frobenius_penalty

    decay = FrobeniusDecay(models.chain(9, 3, 7), coefficient=1.0)
    generator = torch.Generator().manual_seed(3)
    shapes = [(2, 3, 6, 4), (2, 1, 4, 5)]
    factors = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    frobenius_penalty(Product(*factors)).sum().backward()
    for found, factor in zip(decay.gradients(Product(*factors).detach()), factors, strict=True):
        torch.testing.assert_close(found, factor.grad)


def test_no_more_memory_than_the_grams_is_taken_in_a_step() -> None:
    """Twelve products of 400 x 4 x 300: all that is alive at once is no larger than all their Grams."""
    generator = torch.Generator().manual_seed(0)
    shapes = {f"layers.{i}.up.factors.{j}": size for i in range(12) for j, size in enumerate([(400, 4), (4, 300)])}
    model = models.Tree({name: torch.randn(shape, generator=generator) for name, shape in shapes.items()})
    for manner in (True, False):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        decay = FrobeniusDecay(models.products(model, "linear"), coefficient=1e-3, decoupled=manner).attach(optimizer)
        models.fill_gradients(model)
        with Temporaries() as taken:
            optimizer.step()
        decay.detach()
        assert 12 * 4 * 4 * 4 <= taken.peak <= 12 * 2 * 4 * 4 * 4
