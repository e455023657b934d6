"""Working on many products at a time gives each what it would get alone, also where factors are shared or turned."""

from __future__ import annotations

import pytest
import torch

from rankwise.decay.frobenius import FrobeniusDecay
from rankwise.decay.stacks import grouped, is_wide
from rankwise.errors import UserError
from tests.decay import models


def test_only_what_is_alike_is_worked_on_together() -> None:
    decay = FrobeniusDecay([models.chain(9, 3, 7), models.chain(9, 3, 7, seed=1), models.chain(9, 3, 8)])
    assert [len(each) for each in grouped(decay.products, lambda _: ())] == [2, 1]
    names = [live.name for live in decay.products]
    assert [len(each) for each in grouped(decay.products, lambda live: names.index(live.name))] == [1, 1, 1]
    decay.products[1].parameters[0].data = decay.products[1].parameters[0].data.float()
    assert [len(each) for each in grouped(decay.products, lambda _: ())] == [1, 1, 1]


@pytest.mark.parametrize(
    ("shapes", "wide"),
    [([(9, 3), (3, 7)], False), ([(3, 9), (9, 4)], True), ([(9, 3), (3, 20), (20, 7)], True), ([(4, 9, 3)], False)],
)
def test_wide_is_where_the_matrix_is_no_larger_than_the_grams(shapes: list[tuple[int, ...]], wide: bool) -> None:
    assert is_wide(shapes) == wide or len(shapes) == 1


def test_many_products_at_once_are_as_good_as_one_by_one() -> None:
    torch.manual_seed(0)
    shapes = {f"layers.{i}.up.factors.{j}": size for i in range(5) for j, size in enumerate([(9, 3), (3, 7)])}
    ended = []
    for together in (True, False):
        model = models.Tree(models.state(shapes))
        sites = models.products(model, "linear")
        models.fill_gradients(model)
        chosen = [sites] if together else [sites.select(layer=layer) for layer in range(5)]
        for each in chosen:
            FrobeniusDecay(each, coefficient=0.1).add_gradients()
        ended.append({name: each.grad.clone() for name, each in model.named_parameters()})
    for name, value in ended[0].items():
        torch.testing.assert_close(value, ended[1][name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("turned", ["gradient", "parameter"])
def test_gradients_in_another_memory_layout_are_brought_into_the_parameters(turned: str) -> None:
    model = models.chain(9, 3, 7)
    one = model.get_parameter("up.factors.0")
    models.fill_gradients(model)
    if turned == "gradient":
        one.grad = one.grad.mT.contiguous().mT
    else:
        one.data = one.data.mT.contiguous().mT
    before = one.grad.clone()
    decay = FrobeniusDecay(models.products(model, "linear"), coefficient=1.0)
    two = model.get_parameter("up.factors.1").detach()
    decay.add_gradients()
    torch.testing.assert_close(one.grad, before + one.detach() @ (two @ two.mT))
    assert one.grad.stride() == one.stride()


def test_a_pattern_that_would_copy_is_an_error_when_the_decay_is_made() -> None:
    from rankwise.sites.factor import Factor
    from rankwise.sites.site import Site
    from rankwise.sites.sites import Sites

    model = models.Tree(models.state({"one": (6, 4), "two": (4, 6)}))
    factors = (Factor("one", "(a b) c -> (b a) c", sizes={"a": 2}), Factor("two", "a b -> a b"))
    sites = Sites([Site(name="copied", kind="linear", factors=factors)], source=model)
    with pytest.raises(UserError, match="copies one of shape"):
        FrobeniusDecay(sites)
