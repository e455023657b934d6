"""Spikes, collapse and randomness, on spectra made to have or not to have them."""

from __future__ import annotations

import pytest
import torch

from rankwise.errors import UserError
from rankwise.product.null import null_model
from rankwise.product.product import Product
from rankwise.product.spectrum import Spectrum
from rankwise.product.verdicts import collapsed, looks_random, random_distance, rank_share, spikes
from tests.product.draws import frame, gaussian, spectrum


def test_random_products_have_no_spikes_do_not_collapse_and_look_random() -> None:
    p = gaussian((128, 16, 96), 7, batch=(200,))
    known, null = p.spectrum(), null_model(p.widths)
    for model in (null, null.scaled(p)):
        assert (spikes(known, model) > 0).double().mean().item() < 0.02
    assert not collapsed(known, null).any()
    assert looks_random(known, null).double().mean().item() > 0.97
    assert rank_share(known, null).mean().item() == pytest.approx(1.0, abs=0.02)
    # The scale says nothing.
    assert looks_random((p * 1e-3).spectrum(), null).double().mean().item() > 0.97


@pytest.mark.parametrize("count", [1, 3])
def test_planted_directions_are_counted(count: int) -> None:
    p = gaussian((256, 32, 256), 0, dtype=torch.float64)
    null = null_model(p.widths)
    top = null.edge * 1.5
    left, right = frame(256, count, 1), frame(256, count, 2)
    mixed = Product(p.dense() + top * left @ right.mT)
    values = mixed.spectrum().values[:32]
    known = Spectrum(values, method="known", error=torch.zeros_like(values))
    assert spikes(known, null.scaled(p)).item() == count
    assert not looks_random(known, null).item()


def test_an_error_that_reaches_below_the_edge_makes_no_spike() -> None:
    null = null_model((8, 8))
    values = [1.5 * null.edge] + [0.1] * 7
    scaled = null.scaled(gaussian((8, 8), 0))
    assert spikes(spectrum(values), scaled).item() == 1
    assert spikes(spectrum(values, error=null.edge), scaled).item() == 0


def test_low_rank_collapses_and_trained_spectra_do_not_look_random() -> None:
    null = null_model((128, 16, 128))
    low = spectrum([1.0] * 4 + [1e-6] * 12)
    assert collapsed(low, null).item()
    assert rank_share(low, null).item() == pytest.approx(4 / null.value("effective_rank").mean, rel=1e-3)
    flat = spectrum([1.0] * 16)
    assert not collapsed(flat, null).item()
    assert random_distance(flat, null).item() > 3


def test_zero_and_failed_spectra() -> None:
    null = null_model((9, 4, 9))
    zero = spectrum([0.0] * 4)
    assert collapsed(zero, null).item()
    assert not looks_random(zero, null).item()
    assert spikes(zero, null).item() == 0
    nan = torch.full((4,), torch.nan, dtype=torch.float64)
    failed = Spectrum(nan, method="known", error=torch.full_like(nan, torch.inf), failures={0: "broken"})
    assert spikes(failed, null).isnan()
    assert rank_share(failed, null).isnan()
    assert random_distance(failed, null).isnan()
    assert not collapsed(failed, null).item()
    assert not looks_random(failed, null).item()


def test_a_null_of_other_widths_is_refused() -> None:
    with pytest.raises(UserError, match="its own"):
        spikes(spectrum([1.0, 0.5]), null_model((9, 4, 9)))


@pytest.mark.parametrize("scale", [1e-170, 1e160])
def test_verdicts_do_not_depend_on_the_scale_of_the_weights(scale: float) -> None:
    p = gaussian((60, 8, 50), 0)
    far = Product(p.left * scale, p.right)
    null = null_model(p.widths)
    for product in (p, far):
        known = product.spectrum()
        assert spikes(known, null.scaled(product)).item() == 0
        assert random_distance(known, null).item() == pytest.approx(
            random_distance(p.spectrum(), null).item(), rel=1e-9
        )
