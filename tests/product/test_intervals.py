"""Whatever the true values within their errors, every measure of them lies within its own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.product.catalogue import MEASURES, measure
from rankwise.product.product import Product
from rankwise.product.spectrum import Spectrum
from tests.product.draws import gaussian, spectrum


@settings(max_examples=100)
@given(
    true=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9),
    size=st.sampled_from([1e-12, 1e-6, 1e-2, 0.3]),
    signs=st.integers(0, 2**31),
)
@pytest.mark.parametrize("name", list(MEASURES))
def test_the_measure_of_the_true_values_lies_within_the_error(
    name: str, true: list[float], size: float, signs: int
) -> None:
    exact = torch.tensor(sorted(true, reverse=True), dtype=torch.float64)
    exact = torch.where(exact < 1e-9, 0.0, exact)
    generator = torch.Generator().manual_seed(signs)
    # Found values are moved by up to their error, mostly all the way, and sorted like the true ones.
    moves = torch.rand(exact.shape, generator=generator, dtype=torch.float64).mul(4).sub(2).clamp(-1, 1)
    found = (exact + size * moves).clamp_min(0).sort(descending=True).values
    known = Spectrum(found, method="known", error=torch.full_like(found, size))
    report = measure(name, known)
    truth = MEASURES[name].function(Spectrum(exact, method="known", error=torch.zeros_like(exact)))
    if name == "numerical_rank":
        # What rounding may have made is not counted: the true count lies within the error above the found one.
        assert report.value.item() <= (exact > 0).sum().item() <= report.value.item() + report.error.item()
    elif report.error.isinf():
        assert name == "condition"
    else:
        slack = 1e-12 * max(1.0, abs(truth.item()))
        assert abs(truth.item() - report.value.item()) <= report.error.item() + slack
        lower, upper = MEASURES[name].interval(known)
        assert lower.item() - slack <= truth.item() <= upper.item() + slack


@pytest.mark.parametrize("count", [3, 10, 100])
def test_the_entropy_bound_is_reached_by_the_worst_case(count: int) -> None:
    """One value known as alone, the true others sharing what it lacks: the continuity of entropy is tight there."""
    moved = 0.01
    exact = torch.tensor([1 - moved] + [moved / (count - 1)] * (count - 1), dtype=torch.float64)
    found = torch.tensor([1.0] + [0.0] * (count - 1), dtype=torch.float64)
    known = Spectrum(found, method="known", error=(exact - found).abs())
    truth = MEASURES["effective_rank"].function(spectrum(exact.tolist())).item()
    _, upper = MEASURES["effective_rank"].interval(known)
    assert truth <= upper.item() <= truth * 1.2 * count**moved


@pytest.mark.parametrize("name", list(MEASURES))
def test_exact_values_give_exact_measures(name: str) -> None:
    report = measure(name, spectrum([3.0, 1.5, 0.7, 0.1]))
    assert report.error.item() <= 1e-13 * report.value.item()


@pytest.mark.parametrize("name", list(MEASURES))
def test_small_errors_give_small_errors(name: str) -> None:
    report = measure(name, spectrum([3.0, 1.5, 0.7, 0.1], error=1e-9))
    assert report.error.item() <= 1e-6 * report.value.item()


@pytest.mark.parametrize("name", list(MEASURES))
def test_zero_failed_and_unsure_spectra(name: str) -> None:
    values = torch.tensor([[0.0, 0.0], [torch.nan, torch.nan], [1e-3, 1e-4]], dtype=torch.float64)
    error = torch.tensor([[0.0, 0.0], [torch.inf, torch.inf], [1.0, 1.0]], dtype=torch.float64)
    report = measure(name, Spectrum(values, method="known", error=error, failures={1: "broken"}))
    assert report.error[0].item() == (torch.inf if name == "condition" else 0.0)
    assert report.value[1].isnan()
    assert report.error[1].isinf()
    # Nothing is known of the third: its error spans from zero to whatever the values could be.
    assert report.error[2].item() >= report.value[2].item() * (1 - 1e-12) or report.error[2].item() >= 0.5


@pytest.mark.parametrize("name", list(MEASURES))
def test_products_carry_the_method_of_their_spectrum(name: str) -> None:
    p = gaussian((9, 4, 7), 0, batch=(2,))
    report = measure(name, p)
    dense = Spectrum(torch.linalg.svdvals(p.dense())[..., :4], method="dense", error=torch.zeros(2, 4).double())
    assert ((report.value - MEASURES[name].function(dense)).abs() <= report.error + 1e-13 * report.value).all()
    assert report.method in ("gram64", "gram32", "qr", "dense")


def test_a_product_with_a_bad_matrix_is_measured_but_for_that() -> None:
    p = gaussian((9, 4, 7), 0, batch=(2,))
    broken = p.left.clone()
    broken[0, 0, 0] = torch.nan
    for name in MEASURES:
        report = measure(name, Product(broken, p.right))
        assert report.value[0].isnan()
        assert report.error[0].isinf()
        assert report.error[1].isfinite()
