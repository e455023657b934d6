"""What callers switch on around us (autocast, inference mode, default types and devices) changes no number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product import null
from rankwise.product.balance import balance
from rankwise.product.bucket import spectra
from rankwise.product.chain_balance import chain_balance
from rankwise.product.eigen import copying_score
from rankwise.product.leading import leading_value, outline
from rankwise.product.moves import balancing_move, pair_move, scale_move
from rankwise.product.pairs import RotaryPairs, pair_balance, pair_balanced
from rankwise.product.penalties import frobenius_penalty, nuclear_penalty
from rankwise.product.product import Product
from rankwise.product.randomized import project
from rankwise.product.spectrum import spectrum
from tests.product.draws import gaussian


def stack() -> Product:
    return gaussian([48, 8, 40], 0, batch=(12,), dtype=torch.float32)


def matrix(rows: int = 120) -> Product:
    return gaussian([rows, 90], 1, dtype=torch.float32)


COMPUTATIONS: dict[str, Callable[[], Tensor]] = {
    **{name: lambda name=name: spectrum(stack(), method=name).values for name in ("gram32", "gram64", "qr", "dense")},
    "precise": lambda: spectrum(stack()[:2], method="precise").values,
    "spectra": lambda: spectra(list(stack()))[-1].values,
    "dense": lambda: stack().dense(),
    "svd": lambda: stack().svd(2).left,
    "balanced": lambda: stack().balanced().left,
    "truncated": lambda: stack().truncated(rank=2).left,
    "change": lambda: (stack() - 1.01 * stack()).spectrum().values,
    "balance": lambda: balance(stack()).gap,
    "chain": lambda: chain_balance(gaussian([9, 4, 5, 8], 2)).gap,
    "pairs": lambda: pair_balance(stack(), RotaryPairs("half")).gap,
    "balanced pairs": lambda: pair_balanced(stack(), RotaryPairs("half")).left,
    "balancing move": lambda: balancing_move(stack()).matrix,
    "pair move": lambda: pair_move(stack(), torch.tensor([[0, 4], [1, 5]], device="cpu")).matrix,
    "scale move": lambda: scale_move(stack()).matrix,
    "copying": lambda: copying_score(gaussian([9, 4, 9], 2)),
    "Frobenius penalty": lambda: frobenius_penalty(stack()),
    "nuclear penalty": lambda: nuclear_penalty(stack()),
    "null": lambda: null.null_model((48, 8, 40)).scaled(stack()).edge,
    "leading": lambda: leading_value(matrix()).value,
    "outline": lambda: outline(matrix())["stable_rank"].value,
    "projected": lambda: project(matrix(), 4).values,
}


@contextmanager
def default(setting: Callable[[object], None], value: object, usual: object) -> Iterator[None]:
    setting(value)
    try:
        yield
    finally:
        setting(usual)


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference": torch.inference_mode,
    "float64": lambda: default(torch.set_default_dtype, torch.float64, torch.float32),
    "bfloat16": lambda: default(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "elsewhere": lambda: default(torch.set_default_device, "meta", None),
}


@pytest.fixture
def _fresh_null() -> Iterator[None]:
    null._drawn.cache_clear()
    yield
    null._drawn.cache_clear()


@pytest.mark.usefixtures("_fresh_null")
@pytest.mark.parametrize("surroundings", SURROUNDINGS)
@pytest.mark.parametrize("name", COMPUTATIONS)
def test_surroundings_change_no_number(name: str, surroundings: str) -> None:
    expected = COMPUTATIONS[name]()
    null._drawn.cache_clear()
    # Products are made inside too, with the device said: in inference mode their factors are inference tensors.
    with SURROUNDINGS[surroundings]():
        found = COMPUTATIONS[name]()
    assert found.dtype == expected.dtype
    assert found.device == expected.device
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_write_to_what_inference_mode_made(threads: int) -> None:
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            # Large enough that its Grams are computed in several pieces.
            product = gaussian([768, 64, 768], 0, batch=(40,), dtype=torch.float32)
            found = spectrum(product)
    finally:
        torch.set_num_threads(usual)
    assert not found.failures
    assert found.method == "gram64"


@pytest.mark.parametrize("penalty", [frobenius_penalty, nuclear_penalty])
def test_a_backward_pass_inside_autocast_keeps_its_precision(penalty: Callable[[Product], Tensor]) -> None:
    gradients = []
    for enabled in (False, True):
        factors = [factor.requires_grad_() for factor in stack().factors]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            penalty(Product(*factors)).sum().backward()
        gradients.append([factor.grad for factor in factors])
    for plain, mixed in zip(*gradients, strict=True):
        torch.testing.assert_close(mixed, plain, rtol=1e-6, atol=1e-6)


READERS = (spectrum, Product.svd, Product.balanced, balance, frobenius_penalty, nuclear_penalty, leading_value)


@pytest.mark.parametrize("compute", READERS)
def test_shapes_without_values_are_refused_in_one_line(compute: Callable[[Product], object]) -> None:
    product = gaussian([6, 3, 6], 0).to("meta")
    with pytest.raises(UserError, match="is on the meta device: it has shapes and no values") as error:
        compute(product)
    assert "\n" not in str(error.value)
    # What needs no values works.
    assert (product @ product.T)[...].dense().shape == (6, 6)
