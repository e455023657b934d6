"""Products of many sites come back in their order, as if each had been computed alone."""

from __future__ import annotations

import pytest
import torch

from rankwise.product import bucket
from rankwise.product.bucket import spectra, stacked
from rankwise.product.product import Product
from rankwise.product.spectrum import spectrum
from tests.product.draws import gaussian


def mixture() -> list[Product]:
    start = gaussian([6, 3, 5], 20, batch=(2,))
    moved = Product(start.left.clone(), start.right)
    moved.left[1] += 0.1
    spoiled = gaussian([6, 3, 5], 5, batch=(2,))
    spoiled.left[0, 0, 0] = torch.nan
    return [
        gaussian([6, 3, 5], 0, batch=(2,)),
        gaussian([6, 3, 5], 1),
        gaussian([6, 3, 5], 2, batch=(2,)),
        gaussian([6, 3, 5], 3, batch=(2,), dtype=torch.float32),
        gaussian([4, 4], 4),
        spoiled,
        moved - start,
        gaussian([6, 3, 5], 6),
        Product(gaussian([6, 3], 7, batch=(2, 3)).left, gaussian([3, 5], 8, batch=(3,)).left),
        Product(gaussian([6, 3], 9, batch=(2, 3)).left, gaussian([3, 5], 10, batch=(3,)).left),
        moved - start,
    ]


@pytest.mark.parametrize("memory", [1, 2000, 2**30])
@pytest.mark.parametrize("method", ["auto", "qr"])
def test_spectra_are_those_of_each_product_alone(memory, method):
    products = mixture()
    found = spectra(products, method=method, memory=memory)
    assert len(found) == len(products)
    for together, product in zip(found, products, strict=True):
        alone = spectrum(product, method=method)
        assert together.values.shape == alone.values.shape
        assert dict(together.failures) == dict(alone.failures)
        sound = alone.values.isfinite()
        assert torch.equal(sound, together.values.isfinite())
        difference = (together.values - alone.values).abs()[sound]
        assert bool((difference <= (together.error + alone.error)[sound]).all())


def test_equal_shapes_are_one_batch_within_the_memory(monkeypatch):
    batches = []
    monkeypatch.setattr(
        bucket, "spectrum", lambda product, **given: batches.append(product.shape) or spectrum(product, **given)
    )
    products = [gaussian([6, 3, 5], seed, batch=(2,)) for seed in range(5)]
    spectra(products)
    assert batches == [(5, 2, 6, 5)]
    batches.clear()
    spectra(products, memory=torch.get_num_threads() * (2 * 2 * 8 * 3 * (6 + 5) + 10))
    assert sorted(batches) == [(2, 2, 6, 5), (2, 2, 6, 5), (2, 6, 5)]


def test_stacks_keep_what_is_shared():
    products = [Product(torch.randn(2, 3, 4, 2), torch.randn(1, 2, 4)) for _ in range(3)]
    stack = stacked(products)
    assert stack.left.shape == (3, 2, 3, 4, 2)
    assert stack.right.shape == (3, 1, 1, 2, 4)
    torch.testing.assert_close(stack.dense(), torch.stack([product.dense() for product in products]))


def test_no_products_have_no_spectra():
    assert spectra([]) == []
