"""Example 3.2 and 4.6: a transformer of several layers and heads learns one direction of one product at a time."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from rankwise import theory
from rankwise.errors import UserError
from rankwise.theory import Pairing
from rankwise.theory.path import Ending

LAYERS, HEADS, WIDTH = 2, 2, 3


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def module(seed: int = 1, locality: tuple[float, ...] = (0.0, 0.5)) -> theory.DiagonalTransformer:
    return theory.DiagonalTransformer(layers=LAYERS, heads=HEADS, width=WIDTH, hidden=6, seed=seed, locality=locality)


@cache
def taught(locality: tuple[float, ...] = (0.0, 0.5)) -> theory.Problem:
    """A student that is to write what a teacher of the same shape writes."""
    inputs, teacher = drawn(0, 24, 5, WIDTH), module(locality=locality)
    products = drawn(3, 2 * WIDTH * HEADS * LAYERS) / 2
    with torch.no_grad():
        for pair, own in zip(teacher.pairs, products.split(WIDTH), strict=True):
            teacher.get_parameter(pair.left.parameter)[pair.left.row : pair.left.row + WIDTH] = own
        targets = teacher(inputs)
    return theory.diagonal_transformer(inputs, targets, layers=LAYERS, heads=HEADS, hidden=6, seed=1, locality=locality)


@cache
def eight_stages() -> theory.Path:
    return theory.greedy(taught(), stages=8)


def test_it_is_layers_of_heads_and_feed_forward_networks() -> None:
    net, x = module(), drawn(1, 2, 5, WIDTH)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(drawn(len(parameter), len(parameter)))
    z, places = x, torch.arange(5)
    distance = (places[:, None] - places).abs()
    for layer, attention in enumerate(net.attention):
        written = torch.zeros_like(z)
        for head, slope in enumerate((0.0, 0.5)):
            rows = slice(head * WIDTH, (head + 1) * WIDTH)
            key, query, value, output = (
                torch.diag(one[rows]) for one in (attention.key, attention.query, attention.value, attention.output)
            )
            logits = (z @ query) @ (z @ key).mT - slope * distance
            written = written + torch.softmax(logits, -1) @ (z @ value @ output)
        z = z + written
        z = z + torch.nn.functional.gelu(z @ net.expand[layer]) @ net.contract[layer].mT
    torch.testing.assert_close(net(x), z, rtol=1e-12, atol=1e-12)


def test_every_product_has_a_name() -> None:
    problem = taught()
    assert problem.size == 2 * WIDTH * HEADS * LAYERS
    assert problem.coordinates is not None
    assert len({str(one) for one in problem.coordinates}) == problem.size
    assert problem.name(0) == "0 (layer 0 head 0 QK 0)"
    assert problem.name(problem.size - 1) == f"{problem.size - 1} (layer 1 head 1 VO 2)"


@pytest.mark.slow
def test_one_direction_of_one_product_of_one_head_at_a_time() -> None:
    problem = taught()
    path = eight_stages()
    assert path.ending is Ending.STAGES, path.reason
    places = [stage.place for stage in path.stages]
    assert len({(one.layer, one.head, one.pairing) for one in places if one}) >= 4, "several of them take part"
    before = torch.zeros(problem.size, dtype=torch.float64)
    for stage in path.stages:
        ranks = [
            [int((products != 0).sum()) for products in product.split(WIDTH)] for product in (before, stage.product)
        ]
        raised = [late - early for early, late in zip(*ranks, strict=True)]
        assert max(raised) <= 1
        assert sum(one > 0 for one in raised) <= 1
        assert stage.place is not None
        number = (stage.place.layer * HEADS + stage.place.head) * 2 + (stage.place.pairing is Pairing.VO)
        assert stage.coordinate == number * WIDTH + stage.place.channel
        before = stage.product


@pytest.mark.slow
def test_keys_and_queries_rest_until_their_head_writes() -> None:
    problem = taught()
    path = eight_stages()
    assert problem.coordinates is not None
    written: set[tuple[int, int]] = set()
    for plateau, stage in zip(path.plateaus, path.stages, strict=False):
        for coordinate, force in zip(problem.coordinates, plateau.force.tolist(), strict=True):
            if coordinate.pairing is Pairing.QK and (coordinate.layer, coordinate.head) not in written:
                assert force == 0.0
        assert stage.place is not None
        head = stage.place.layer, stage.place.head
        if stage.place.pairing is Pairing.VO:
            written.add(head)
        else:
            assert head in written
    assert path.stages[0].place is not None
    assert path.stages[0].place.pairing is Pairing.VO


@pytest.mark.slow
def test_the_flow_from_a_small_start_activates_in_that_order() -> None:
    problem = taught()
    path = theory.greedy(problem, stages=4)
    start = drawn(5, problem.size), drawn(6, problem.size)
    runs = [
        theory.flow(problem, log_alpha=one, start=start, until=1.25 * float(path.times[-1])) for one in (-200, -400)
    ]
    compared = theory.compare(path, runs)
    assert bool((compared.slope_errors < 5e-3).all())


def test_exchangeable_heads_tie() -> None:
    """Two heads that differ in nothing feel the same force at zero: Assumption 4.2 does not hold for them."""
    path = theory.greedy(taught(()))
    assert path.ending is Ending.TIED
    assert path.stages == ()
    first, second = (str(taught(()).coordinates[one]) for one in path.tied)
    assert first.replace("head 0", "head 1") == second


def test_localities_are_one_for_each_head() -> None:
    with pytest.raises(UserError, match="1 localities were given for 2 heads"):
        module(locality=(0.5,))
