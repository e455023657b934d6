"""Measures of spectra with known answers, of zero, and of what failed."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import UserError
from rankwise.product import measures
from rankwise.product.product import Product
from rankwise.product.spectrum import Spectrum
from tests.product.draws import gaussian, spectrum, with_values

ALL = [
    measures.stable_rank,
    measures.pseudo_rank,
    measures.energy_rank,
    measures.effective_rank,
    measures.participation_ratio,
    measures.nuclear_norm,
    measures.frobenius_norm,
    measures.operator_norm,
    measures.nuclear_ratio,
    measures.nuclear_frobenius_ratio,
    measures.numerical_rank,
    measures.condition,
]
SHAPES = [
    measures.stable_rank,
    measures.pseudo_rank,
    measures.energy_rank,
    measures.effective_rank,
    measures.participation_ratio,
    measures.nuclear_ratio,
    measures.nuclear_frobenius_ratio,
    measures.numerical_rank,
    measures.condition,
]


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        (measures.stable_rank, (16 + 4 + 1) / 16),
        (measures.pseudo_rank, 3 / 4),
        (measures.energy_rank, 2.0),
        (measures.effective_rank, math.exp(-sum(p * math.log(p) for p in (4 / 7, 2 / 7, 1 / 7)))),
        (measures.participation_ratio, 21**2 / (256 + 16 + 1)),
        (measures.nuclear_norm, 7.0),
        (measures.frobenius_norm, math.sqrt(21)),
        (measures.operator_norm, 4.0),
        (measures.nuclear_ratio, 7 / 4),
        (measures.nuclear_frobenius_ratio, 49 / 21),
        (measures.numerical_rank, 3.0),
        (measures.condition, math.inf),
    ],
)
def test_known_answers(measure, expected: float) -> None:
    found = measure(spectrum([4.0, 2.0, 1.0, 0.0]))
    assert found.item() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("count", [1, 2, 20, 64])
def test_equal_values_have_full_rank_by_every_measure(count: int) -> None:
    flat = spectrum([3.0] * count)
    for measure in (
        measures.stable_rank, measures.effective_rank, measures.participation_ratio, measures.nuclear_ratio,
        measures.nuclear_frobenius_ratio, measures.numerical_rank,
    ):  # fmt: skip
        assert measure(flat).item() == pytest.approx(count, rel=1e-13)
    assert measures.pseudo_rank(flat).item() == math.ceil(0.95 * count - 1e-9) / count
    assert measures.energy_rank(flat, 0.5).item() == math.ceil(count / 2)
    assert measures.condition(flat).item() == 1.0


def test_a_zero_matrix_has_rank_zero() -> None:
    zero = spectrum([[0.0, 0.0], [2.0, 0.0]])
    for measure in ALL:
        expected = math.inf if measure is measures.condition else 0.0
        assert measure(zero)[0].item() == expected, measure.__name__
        assert measure(zero)[1].item() > 0
    assert measures.schatten(zero, 0.5).tolist() == [0.0, 2.0]


def test_a_failed_spectrum_is_nan_and_leaves_the_others_alone() -> None:
    values = torch.tensor([[2.0, 1.0], [torch.nan, torch.nan]], dtype=torch.float64)
    broken = Spectrum(values, method="known", error=values.isnan() * 1e308 * 10, failures={1: "broken"})
    for measure in [
        *ALL,
        lambda target: measures.schatten(target, 3),
        lambda target: measures.schatten(target, math.inf),
    ]:
        found = measure(broken)
        assert found[0].isfinite()
        assert found[1].isnan()
    assert measures.pseudo_rank(broken, interpolated=True)[1].isnan()


@settings(max_examples=60)
@given(
    values=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=12),
    exponent=st.integers(-140, 140),
)
def test_shapes_do_not_depend_on_the_scale_and_keep_their_order(values: list[float], exponent: int) -> None:
    ordered = sorted(values, reverse=True)
    one, two = spectrum(ordered), spectrum([value * 2.0**exponent for value in ordered])
    for measure in SHAPES:
        torch.testing.assert_close(measure(one), measure(two), rtol=1e-12, atol=0)
    count = len(values)
    chain = [measures.stable_rank(one), measures.nuclear_ratio(one), torch.tensor(float(count))]
    assert chain[0].item() <= chain[1].item() * (1 + 1e-12)
    assert chain[1].item() <= count * (1 + 1e-12)
    assert measures.participation_ratio(one).item() <= measures.nuclear_frobenius_ratio(one).item() * (1 + 1e-12)
    assert measures.nuclear_frobenius_ratio(one).item() <= measures.effective_rank(one).item() * (1 + 1e-9)
    assert 1 / count <= measures.pseudo_rank(one).item() <= 1


@settings(max_examples=60)
@given(values=st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=12), threshold=st.floats(0.01, 1.0))
def test_pseudo_rank_is_the_least_number_that_holds_the_share_of_the_sum(values: list[float], threshold: float) -> None:
    ordered = sorted(values, reverse=True)
    count = next(k for k in range(1, len(values) + 1) if sum(ordered[:k]) >= (threshold - 1e-12) * sum(ordered))
    target = spectrum(ordered)
    assert measures.pseudo_rank(target, threshold).item() == pytest.approx(count / len(values))
    assert measures.pseudo_rank(target, threshold, of=768).item() == pytest.approx(count / 768)
    smooth = measures.pseudo_rank(target, threshold, interpolated=True).item() * len(values)
    assert count - 1 - 1e-9 <= smooth <= count + 1e-9


def test_interpolated_pseudo_rank_moves_without_steps() -> None:
    flat = spectrum([1.0] * 10)
    for threshold in (0.05, 0.33, 0.951, 1.0):
        assert measures.pseudo_rank(flat, threshold, interpolated=True).item() == pytest.approx(threshold, rel=1e-12)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.7, math.inf])
def test_schatten_norms(p: float) -> None:
    values = [3.0, 2.0, 1.0]
    expected = 3.0 if p == math.inf else sum(value**p for value in values) ** (1 / p)
    assert measures.schatten(spectrum(values), p).item() == pytest.approx(expected, rel=1e-13)


def test_numerical_rank_does_not_count_what_its_error_covers() -> None:
    values = [1.0, 1e-3, 1e-7, 1e-15]
    assert measures.numerical_rank(spectrum(values)).item() == 4
    assert measures.numerical_rank(spectrum(values, error=1e-5)).item() == 2
    assert measures.numerical_rank(spectrum(values), tolerance=1e-2).item() == 1
    deficient = with_values([2.0, 1.0, 0.0, 0.0], 40, 30, 0)
    assert measures.numerical_rank(deficient).item() == 2


def test_products_are_measured_as_their_spectra() -> None:
    p = gaussian((9, 4, 7), 0, batch=(3,))
    known = p.spectrum()
    for measure in ALL:
        torch.testing.assert_close(measure(p), measure(known), rtol=1e-12, atol=0)


def test_frobenius_norm_of_a_product_in_a_bad_gauge_and_of_a_change() -> None:
    p = gaussian((9, 3, 7), 0)
    gauge = torch.tensor([1e9, 1e-9, 1.0], dtype=torch.float64)
    moved = Product(p.left * gauge, p.right / gauge[:, None])
    expected = torch.linalg.matrix_norm(p.dense()).item()
    assert measures.frobenius_norm(moved).item() == pytest.approx(expected, rel=1e-12)
    nudged = Product(p.left.float() * (1 + 1e-7), p.right.float())
    assert measures.frobenius_norm(nudged - p.to(torch.float32)).isnan()


def test_measures_carry_no_gradient() -> None:
    p = Product(*(factor.requires_grad_() for factor in gaussian((5, 2, 4), 0).factors))
    for measure in ALL:
        assert not measure(p).requires_grad, measure.__name__


def test_wrong_arguments_get_one_line() -> None:
    target = spectrum([1.0])
    for share in (0.0, 1.1, -1.0):
        with pytest.raises(UserError, match="95 %"):
            measures.pseudo_rank(target, share)
        with pytest.raises(UserError, match="95 %"):
            measures.energy_rank(target, share)
    with pytest.raises(UserError, match="of=0"):
        measures.pseudo_rank(target, of=0)
    for p in (0.0, -1.0, math.nan):
        with pytest.raises(UserError, match="p > 0"):
            measures.schatten(target, p)
    with pytest.raises(UserError, match=r"Product\(…\)"):
        measures.stable_rank(torch.eye(2))  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [1e-170, 1e160])
def test_norms_at_the_ends_of_the_range_of_float64(scale: float) -> None:
    p = gaussian((30, 4, 20), 0)
    far = Product(p.left * scale, p.right)
    for measure in (measures.frobenius_norm, measures.nuclear_norm, measures.operator_norm):
        assert measure(far).item() == pytest.approx(scale * measure(p).item(), rel=1e-12)
    assert measures.stable_rank(far).item() == pytest.approx(measures.stable_rank(p).item(), rel=1e-12)


def test_an_empty_batch_has_no_measures() -> None:
    p = Product(torch.empty(0, 5, 3), torch.empty(0, 3, 4))
    for measure in ALL:
        assert measure(p).shape == (0,)
    assert p.truncated(energy=0.5).batch_shape == (0,)
    assert p.balanced().batch_shape == (0,)
