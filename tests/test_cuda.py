"""The same numbers on a GPU as on the CPU, within both bounds; skipped on machines without one."""

from __future__ import annotations

import pytest
import torch

import rankwise as rw
from rankwise.product.ladder import METHODS
from tests.product.draws import gaussian, with_values

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

SHAPES = {
    "heads": ((96, 16, 96), (3, 4)),
    "one": ((40, 8, 24), ()),
    "chain": ((30, 12, 10, 25), (5,)),
    "wide": ((20, 32, 24), (4,)),
    "single": ((48, 31), (2,)),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_spectra_agree_within_both_bounds(name, method):
    widths, batch = SHAPES[name]
    product = gaussian(widths, 7, batch=batch, dtype=torch.float32)
    here, there = product.spectrum(method), product.to("cuda").spectrum(method)
    assert there.values.device.type == "cuda"
    apart = (here.values - there.values.cpu()).abs()
    assert (apart <= here.error + there.error.cpu()).all()
    assert there.error.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_bounds_hold_on_the_device_for_every_type(dtype):
    product = gaussian((256, 32, 200), 3, batch=(6,), dtype=dtype)
    truth = torch.linalg.svdvals(product.to(torch.float64).dense())[..., :32]
    found = product.to("cuda").spectrum()
    assert ((found.values.cpu() - truth).abs() <= found.error.cpu()).all()
    assert (found.error <= 1e-6 * found.values[..., :1]).all()


def test_graded_values_climb_the_ladder_on_the_device():
    values = [10.0**-power for power in range(12)]
    product = with_values(values, 60, 50, 5)
    found = product.to("cuda").spectrum("precise")
    truth = torch.tensor(values, dtype=torch.float64)
    assert ((found.values.cpu() - truth).abs() <= found.error.cpu()).all()


def test_one_bad_matrix_leaves_the_others():
    product = gaussian((64, 8, 64), 1, batch=(5,), dtype=torch.float32)
    left = product.left.clone()
    left[2, 0, 0] = torch.nan
    found = rw.Product(left, product.right).to("cuda").spectrum()
    assert list(found.failures) == [2]
    assert found.values[[0, 1, 3, 4]].isfinite().all()


@pytest.mark.parametrize("name", sorted(rw.MEASURES))
def test_measures_agree(name):
    product = gaussian((64, 16, 64), 2, batch=(4,), dtype=torch.float32)
    here, there = (rw.MEASURES[name].of(each.spectrum()) for each in (product, product.to("cuda")))
    apart = (here.value.double() - there.value.cpu().double()).abs()
    assert (apart <= here.error + there.error.cpu() + 1e-12).all()


def test_balance_and_pairs_agree():
    product = gaussian((64, 16, 64), 4, batch=(4,), dtype=torch.float32)
    here, there = rw.balance(product), rw.balance(product.to("cuda"))
    assert ((here.gap - there.gap.cpu()).abs() <= here.error + there.error.cpu()).all()


@pytest.mark.parametrize("penalty", [rw.frobenius_penalty, rw.nuclear_penalty])
def test_penalties_and_their_gradients_agree(penalty):
    gradients = []
    for device in ("cpu", "cuda"):
        product = gaussian((48, 8, 40), 6, batch=(3,), dtype=torch.float64).to(device)
        factors = [factor.clone().requires_grad_() for factor in product.factors]
        penalty(rw.Product(*factors)).sum().backward()
        gradients.append([factor.grad.cpu() for factor in factors])
    for here, there in zip(*gradients, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-10, atol=1e-12)


def test_many_products_in_buckets_agree():
    products = [gaussian((96, 16, 96), seed, dtype=torch.float32) for seed in range(9)]
    products += [gaussian((64, 8, 80), seed, dtype=torch.float32) for seed in range(5)]
    here, there = rw.spectra(products), rw.spectra([product.to("cuda") for product in products])
    for one, two in zip(here, there, strict=True):
        assert ((one.values - two.values.cpu()).abs() <= one.error + two.error.cpu()).all()
