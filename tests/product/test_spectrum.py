"""Every error bound holds, against values that are known to sixty digits or built in, and nothing raises."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import UserError
from rankwise.product.ladder import METHODS
from rankwise.product.product import Product
from rankwise.product.spectrum import Spectrum, SpectrumError, spectrum
from tests.product.draws import frame, gaussian, with_values

BOUNDED = ("gram32", "gram64", "qr", "dense", "precise", "auto")
seeds = st.integers(0, 2**31)


def exact_values(product: Product, digits: int = 60) -> list[mpmath.mpf]:
    """The singular values of one matrix, to so many digits of the largest."""
    with mpmath.workdps(digits):
        dense = mpmath.matrix(product.left.double().tolist())
        for factor in product.factors[1:]:
            dense = dense * mpmath.matrix(factor.double().tolist())
        values = mpmath.svd_r(dense, compute_uv=False)
        return sorted(values, reverse=True)[: product.max_rank]


def assert_bound_holds(product: Product, methods: tuple[str, ...] = BOUNDED, tolerance: float = 1e-9) -> None:
    truth = exact_values(product)
    for method in methods:
        found = spectrum(product, method=method, tolerance=tolerance).raise_on_failure()
        for value, error, true in zip(found.values.tolist(), found.error.tolist(), truth, strict=True):
            assert abs(mpmath.mpf(value) - true) <= error, (method, value, float(true), error)


sizes = st.sampled_from([(1, 1, 1), (1, 3, 6), (6, 1, 4), (5, 4, 6), (3, 7, 4), (9, 2, 9), (4, 6, 9)])
types = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])


@settings(max_examples=25, deadline=None)
@given(sizes, types, seeds)
def test_bound_on_random_factors_of_every_shape_and_type(shape, dtype, seed):
    assert_bound_holds(gaussian(shape, seed, dtype=dtype))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=6), types, seeds)
def test_bound_on_chains_and_single_matrices(shape, dtype, seed):
    assert_bound_holds(gaussian(shape, seed, dtype=dtype))


@settings(max_examples=15, deadline=None)
@given(st.floats(0, 6), seeds)
def test_bound_under_full_gauges(decades, seed):
    product = gaussian([6, 4, 5], seed)
    gauge = frame(4, 4, seed) * 10 ** torch.linspace(0, decades, 4, dtype=torch.float64) @ frame(4, 4, seed + 1).mT
    assert_bound_holds(Product(product.left @ gauge, torch.linalg.solve(gauge, product.right)))


@settings(max_examples=15, deadline=None)
@given(seeds)
def test_diagonal_gauges_cost_nothing(seed):
    product = gaussian([6, 4, 5], seed)
    generator = torch.Generator().manual_seed(seed)
    gauge = 2.0 ** torch.randint(-40, 41, (4,), generator=generator).double()
    moved = Product(product.left * gauge, product.right / gauge[:, None])
    assert_bound_holds(moved, tuple(method for method in BOUNDED if method != "gram32"))
    for method in ("gram64", "qr"):
        still, found = (spectrum(one, method=method, tolerance=1.0) for one in (product, moved))
        torch.testing.assert_close(found.values, still.values, rtol=1e-9, atol=0)
        # The norms of equilibrated columns agree up to a factor of two, whatever the gauge was.
        assert bool((found.error <= 16 * still.error).all())


@settings(max_examples=15, deadline=None)
@given(st.floats(0, 12), types, seeds)
def test_bound_on_graded_spectra(decades, dtype, seed):
    values = (10 ** torch.linspace(0, -decades, 4, dtype=torch.float64)).tolist()
    assert_bound_holds(with_values(values, 6, 5, seed).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_bound_on_deficient_factors(dtype):
    product = gaussian([6, 4, 5], 3, dtype=dtype)
    repeated = product.left.clone()
    repeated[:, 3] = repeated[:, 0]
    empty = product.left.clone()
    empty[:, 1] = 0
    huge = product.right.clone()
    huge[1] *= 1e9
    for factors in (
        (repeated, product.right),
        (empty, product.right),
        (empty, huge),
        (product.left * 0, product.right),
        (torch.ones(6, 4, dtype=dtype) / 3, torch.ones(4, 5, dtype=dtype) / 7),
        (product.left * 1e-3 + 1, product.right * 1e-3 + 1),
    ):
        assert_bound_holds(Product(*factors))
        assert_bound_holds(Product(*factors).T)


@pytest.mark.parametrize("exponent", [-280, -160, 150, 300])
def test_bound_on_extreme_scales(exponent):
    product = gaussian([5, 3, 4], 0)
    far = Product(product.left * 10.0**exponent, product.right / 10.0 ** (exponent / 2))
    assert_bound_holds(far, ("gram64", "qr", "dense", "precise", "auto"))


def test_float32_grams_out_of_range_leave_it_to_float64():
    product = gaussian([5, 3, 4], 0, dtype=torch.float32)
    for scale in (1e-25, 1e25):
        far = Product(product.left * scale, product.right)
        assert spectrum(far, method="gram32").failures
        found = spectrum(far, tolerance=1e-3)
        assert found.method == "gram64"
        assert_bound_holds(far, ("auto",))


def test_well_conditioned_factors_in_float64_are_known_to_eight_digits():
    product = gaussian([768, 64, 768], 0, batch=(2,))
    reference = spectrum(product, method="precise")
    for method in ("gram64", "qr", "auto"):
        found = spectrum(product, method=method)
        assert float(found.relative_error.max()) < 1e-8
        assert bool(((found.values - reference.values).abs() <= found.error + reference.error).all())


def test_auto_meets_its_tolerance_with_the_cheapest_method():
    easy = gaussian([40, 4, 40], 0, dtype=torch.float32)
    assert spectrum(easy, tolerance=1e-2).method == "gram32"
    assert spectrum(easy).method == "gram64"
    assert spectrum(easy.to(torch.float64), tolerance=1e-2).method == "gram64"
    assert spectrum(with_values([1, 1e-10, 1e-11], 6, 5, 0), tolerance=1e-9).method == "qr"


def test_auto_multiplies_out_where_that_alone_meets_the_tolerance():
    generator = torch.Generator().manual_seed(0)
    # Without cancellation between them, the factors' norms say too much: their entries multiply to far less.
    left = 1 + torch.rand(3, 3, generator=generator, dtype=torch.float64).triu() * 1e3
    product = Product(left, left.mT.flip(0), left.flip(1))
    reached = {method: float(spectrum(product, method=method).relative_error.max()) for method in ("qr", "dense")}
    assert reached["dense"] < reached["qr"]
    between = (reached["dense"] + reached["qr"]) / 2
    assert spectrum(product, tolerance=between).method == "dense"
    # Where nothing reaches the tolerance, the best answer is kept with its error.
    assert float(spectrum(product, tolerance=0.0).relative_error.max()) <= reached["qr"]
    assert_bound_holds(product)


def test_a_gauge_of_large_norm_is_told_in_the_error():
    turn = torch.eye(3, dtype=torch.float64) + 1e6 * torch.ones(3, 3, dtype=torch.float64).triu(1)
    product = gaussian([4, 3, 5], 0)
    moved = Product(product.left @ turn, torch.linalg.inv(turn) @ product.right)
    for method in ("gram64", "qr", "dense", "precise"):
        assert bool((spectrum(moved, method=method).error > spectrum(product, method=method).error).all())
    assert_bound_holds(moved, ("gram64", "qr", "dense", "precise", "auto"))


def test_every_matrix_takes_its_own_method():
    product = Product(
        torch.stack([gaussian([6, 3, 5], 0).left, with_values([1, 1e-10, 1e-11], 6, 5, 0).left]),
        torch.stack([gaussian([6, 3, 5], 0).right, with_values([1, 1e-10, 1e-11], 6, 5, 0).right]),
    )
    found = spectrum(product, tolerance=1e-9)
    assert found.method == ("gram64", "qr")
    assert found.methods == {"gram64": 1, "qr": 1}
    assert found[1].method == "qr"
    assert bool((found.error.amax(-1) <= 1e-9 * found.values[:, 0]).all())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_matrix_is_marked_and_costs_the_others_nothing(method, bad):
    product = gaussian([6, 3, 5], 0, batch=(2, 3), dtype=torch.float32)
    spoiled = product.left.clone()
    spoiled[0, 1, 2, 2] = bad
    found = spectrum(Product(spoiled, product.right), method=method)
    assert dict(found.failures) == {1: "a factor holds NaN or Inf"}
    assert found.values[0, 1].isnan().all()
    assert found.error[0, 1].isposinf().all()
    sound = torch.ones(2, 3, dtype=torch.bool)
    sound[0, 1] = False
    torch.testing.assert_close(found.values[sound], spectrum(product, method=method).values[sound])
    assert found.error[sound].isfinite().all()
    with pytest.raises(SpectrumError, match=r"1 of 6 .* number 1: a factor holds NaN"):
        found.raise_on_failure()


@pytest.mark.parametrize("method", ["gram64", "qr", "dense"])
def test_a_matrix_that_does_not_converge_is_marked(monkeypatch, method):
    # Real matrices on which LAPACK gives up differ from version to version: the refusal is put in by hand.
    true_eigvalsh, true_svdvals = torch.linalg.eigvalsh, torch.linalg.svdvals

    def refuse_large(decompose):
        def wrapped(matrices):
            if bool((matrices.abs() > 1e3).any()):
                raise torch.linalg.LinAlgError("failed to converge")
            return decompose(matrices)

        return wrapped

    monkeypatch.setattr(torch.linalg, "eigvalsh", refuse_large(true_eigvalsh))
    monkeypatch.setattr(torch.linalg, "svdvals", refuse_large(true_svdvals))
    product = gaussian([6, 3, 5], 0, batch=(3,))
    scale = torch.tensor([1.0, 1e4, 1.0]).double()[:, None, None]
    found = spectrum(Product(product.left * scale, product.right), method=method)
    assert set(found.failures) == {1}
    assert "did not converge" in found.failures[1]
    assert found.values[[0, 2]].isfinite().all()


@settings(max_examples=20, deadline=None)
@given(seeds, st.sampled_from(["gram64", "qr", "auto"]))
def test_values_do_not_depend_on_transposes_batches_or_sharing(seed, method):
    queries, keys = gaussian([5, 3, 6], seed, batch=(2, 4)).left, gaussian([5, 3, 6], seed + 1, batch=(2, 1)).right
    grouped = spectrum(Product(queries, keys), method=method)
    single = torch.stack(
        [
            torch.stack([spectrum(Product(queries[i, j], keys[i, 0]), method=method).values for j in range(4)])
            for i in range(2)
        ]
    )
    atol = 1e-7 * float(single.amax()) if method != "qr" else 1e-12 * float(single.amax())
    torch.testing.assert_close(grouped.values, single, rtol=0, atol=atol)
    expanded = spectrum(Product(queries, keys.expand(2, 4, 3, 6)), method=method)
    torch.testing.assert_close(expanded.values, grouped.values, rtol=0, atol=atol)
    transposed = spectrum(Product(queries, keys).T, method=method)
    assert bool(((transposed.values - grouped.values).abs() <= transposed.error + grouped.error).all())


@pytest.mark.parametrize("method", BOUNDED)
def test_little_memory_changes_no_value(method):
    product = Product(gaussian([6, 3, 5], 0, batch=(3, 4)).left, gaussian([6, 3, 5], 1, batch=(3, 1)).right)
    whole, pieces = spectrum(product, method=method), spectrum(product, method=method, memory=1)
    assert bool(((whole.values - pieces.values).abs() <= whole.error + pieces.error).all())
    assert whole.method == pieces.method


def test_an_empty_batch_has_an_empty_spectrum():
    found = spectrum(Product(torch.ones(0, 4, 2), torch.ones(2, 4)))
    assert found.values.shape == (0, 2)
    assert not found.failures
    assert len(found) == 0


def test_spectra_are_outside_autograd_and_in_float64():
    found = spectrum(Product(torch.randn(4, 2, requires_grad=True), torch.randn(2, 4)))
    assert found.values.dtype == found.error.dtype == torch.float64
    assert not found.values.requires_grad


def test_a_record_answers_for_its_batch():
    product = gaussian([4, 2, 4], 0, batch=(2, 3))
    spoiled = product.left.clone()
    spoiled[1, 2] = math.nan
    found = spectrum(Product(spoiled, product.right))
    assert found.batch_shape == (2, 3)
    assert len(found) == 2
    assert [one.batch_shape for one in found] == [(3,), (3,)]
    assert dict(found[1].failures) == {2: "a factor holds NaN or Inf"}
    assert not found[0].failures
    assert found[1, 2].values.isnan().all()
    assert dict(found[torch.tensor([1, 1]), torch.tensor([2, 0])].failures) == {0: "a factor holds NaN or Inf"}
    assert "2x3 of 2 values" in repr(found)
    assert "1 failed" in repr(found)
    assert found[0].raise_on_failure().batch_shape == (3,)


def test_relative_error_of_zero_is_zero_and_of_failures_infinite():
    values = torch.tensor([[0.0, 0.0], [2.0, 1.0], [math.nan, math.nan]])
    error = torch.tensor([[0.0, 0.0], [0.5, 1.0], [math.inf, math.inf]])
    found = Spectrum(values, method="qr", error=error)
    assert found.relative_error.tolist() == [[0.0, 0.0], [0.25, 0.5], [math.inf, math.inf]]


def test_wrong_arguments_get_one_line():
    product = gaussian([4, 2, 4], 0)
    for arguments, message in (
        ({"method": "svd"}, "give one of auto, gram32"),
        ({"tolerance": -1.0}, "give a share"),
        ({"tolerance": math.nan}, "give a share"),
        ({"memory": 0}, "positive number of bytes"),
    ):
        with pytest.raises(UserError, match=message) as error:
            spectrum(product, **arguments)
        assert "\n" not in str(error.value)
