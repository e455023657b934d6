"""The paper's starts in numbers: what "spectral against regular" changes besides the directions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rankwise import FactorizedConv2d, Product, Spectral, nuclear_norm, operator_norm

CHANNELS = 64


def kernels(share: float, init) -> Product:
    torch.manual_seed(0)
    rank = max(1, round(share * 3 * CHANNELS))
    return FactorizedConv2d(CHANNELS, CHANNELS, 3, rank=rank, bias=False, init=init).product


def energy(product: Product) -> float:
    return product.dense().square().sum().item()


KAIMING = Spectral(draw=nn.init.kaiming_normal_)
# The whole draw, as a product of full rank.
DENSE = kernels(1.0, KAIMING)


@pytest.mark.parametrize(("share", "top"), [(0.037, 13.0), (0.111, 8.9), (0.333, 6.4), (1.0, 5.1)])
def test_kaiming_factors_make_a_product_six_times_as_large_as_the_dense_draw(share, top):
    regular = kernels(share, nn.init.kaiming_normal_)
    assert energy(regular) == pytest.approx(4 * 3 * CHANNELS, rel=0.1)
    assert energy(regular) / energy(DENSE) == pytest.approx(6, rel=0.1)
    assert operator_norm(regular.spectrum()).item() == pytest.approx(top, rel=0.05)
    assert operator_norm(kernels(share, KAIMING).spectrum()).item() == pytest.approx(1.6, rel=0.05)


@pytest.mark.parametrize(
    ("share", "squares", "nuclear"), [(0.037, 0.13, 0.08), (0.111, 0.34, 0.23), (0.333, 0.74, 0.58)]
)
def test_a_spectral_start_keeps_known_shares_of_the_draw(share, squares, nuclear):
    started = kernels(share, KAIMING)
    assert energy(started) / energy(DENSE) == pytest.approx(squares, abs=0.01)
    nuclear_norms = [nuclear_norm(each.spectrum()).item() for each in (started, DENSE)]
    assert nuclear_norms[0] / nuclear_norms[1] == pytest.approx(nuclear, abs=0.01)


def test_where_factors_are_drawn_as_the_dense_weight_the_product_is_smaller_instead():
    """VGG and wide ResNets: `2 / 3` of the share; spectral and regular starts then differ the other way round."""
    spread = (2 / (9 * CHANNELS)) ** 0.5
    for share in (0.111, 0.333):
        regular = kernels(share, lambda factor: nn.init.normal_(factor, std=spread))
        assert energy(regular) / energy(DENSE) == pytest.approx(2 * share / 3, rel=0.1)
        assert energy(regular) < energy(kernels(share, KAIMING))
