"""The balance penalty moves factors along their gauge, leaves the product alone, and drives the imbalance out."""

from __future__ import annotations

import pytest
import torch

from rankwise.decay.balance import BalanceDecay
from rankwise.errors import UserError
from rankwise.product.product import Product
from tests.decay import models
from tests.product.draws import gaussian


def value(product: Product) -> torch.Tensor:
    """By the definition, two or more factors, none shared."""
    total = torch.zeros((), dtype=torch.float64)
    for one, two in zip(product.factors[:-1], product.factors[1:], strict=True):
        total = total + (one.mT @ one - two @ two.mT).square().sum() / 4
    return total


@pytest.mark.parametrize("widths", [(9, 3, 7), (9, 3, 4, 7), (3, 9, 4)])
def test_gradients_are_those_of_the_definition(widths: tuple[int, ...]) -> None:
    product = gaussian(widths, 0, batch=(2,))
    leaves = [factor.clone().requires_grad_() for factor in product.factors]
    expected = torch.autograd.grad(value(Product(*leaves)), leaves)
    decay = BalanceDecay(models.chain(3, 2, 3), coefficient=1.0)
    for found, wanted in zip(decay.gradients(product), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    assert decay.value(product).item() == pytest.approx(value(product).item(), rel=1e-12)


def test_the_product_stays_to_first_order() -> None:
    """Halving the step takes a quarter off what the product moves by."""
    moved = []
    product = gaussian((9, 3, 7), 0)
    first, last = BalanceDecay(models.chain(3, 2, 3), coefficient=1.0).gradients(product)
    for step in (1e-3, 5e-4):
        after = (product.left - step * first) @ (product.right - step * last)
        moved.append(float((after - product.dense()).norm()))
    assert moved[0] / moved[1] == pytest.approx(4.0, rel=1e-2)


def test_groups_and_rotary_pairs_have_the_gauge_of_their_site() -> None:
    """One scale for each pair of dimensions that turn together; heads that share keys share it."""
    model = models.llama()
    sites = models.products(model, ("qk", "ov")).select(layer=0)
    pairs = sites["layers.0.qk"].attention.rotary.index()
    query, key = (
        model.get_parameter(f"layers.0.self_attn.{name}_proj.weight").detach().clone().requires_grad_() for name in "qk"
    )
    q, k = query.view(2, 3, 4, 10), key.view(2, 4, 10)
    sizes = q.square().sum((1, 3)) - k.square().sum(2)  # [group, dimension]
    of_pairs = sizes[:, pairs].mean(-1)
    qk = (of_pairs.square().sum() * 2) / 4
    expected = torch.autograd.grad(qk, [query, key])
    before = models.fill_gradients(model)
    decay = BalanceDecay(sites.select(kind="qk"), coefficient=1.0)
    assert decay.penalty().item() == pytest.approx(qk.item(), rel=1e-10)
    decay.add_gradients()
    for name, wanted in zip("qk", expected, strict=True):
        at = f"layers.0.self_attn.{name}_proj.weight"
        torch.testing.assert_close(model.get_parameter(at).grad - before[at], wanted, rtol=1e-9, atol=1e-9)
    # Values and outputs have the whole of it.
    value, output = (model.get_parameter(f"layers.0.self_attn.{name}_proj.weight").detach() for name in "vo")
    v, o = value.view(2, 4, 10), output.view(10, 2, 3, 4)
    whole = torch.einsum("dgqr,dgqs->grs", o, o) - v @ v.mT
    assert BalanceDecay(sites.select(kind="ov"), coefficient=1.0).penalty().item() == pytest.approx(
        float(whole.square().sum() / 4), rel=1e-10
    )


def test_a_run_balances_and_keeps_what_it_computes() -> None:
    model = models.chain(6, 3, 5)
    sites = models.products(model, "linear")
    (site,) = sites
    start = site.product(model).dense().detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=3e-3, weight_decay=0.0)
    decay = BalanceDecay(sites, coefficient=1.0).attach(optimizer)
    before = decay.penalty().item()
    for _ in range(500):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    assert decay.penalty().item() < 1e-6 * before
    assert (site.product(model).dense().detach() - start).norm() < 0.02 * start.norm()


def test_it_stands_beside_the_optimizers_own_decay() -> None:
    model = models.chain(6, 3, 5)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    BalanceDecay(model, coefficient=0.1).attach(optimizer)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1]


def test_what_has_no_balance_is_refused() -> None:
    with pytest.raises(UserError, match="is a single matrix: only products of two factors"):
        BalanceDecay(models.products(models.gpt2(), "mlp"), coefficient=0.1)
    with pytest.raises(UserError, match="BalanceDecay cannot act on it"):
        BalanceDecay(models.Tensorized(), coefficient=0.1)
    with pytest.raises(UserError, match="no weight decay of an optimizer to take over"):
        BalanceDecay(models.chain(3, 2, 3), coefficient=None)
