"""The null model: the paper's table, laws known in closed form, and independence of everything global."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from rankwise.errors import UserError
from rankwise.product.null import null_model
from rankwise.product.product import Product
from tests.product.draws import gaussian

# Width, head size, then gap / half-sum, pseudo-rank, relative imbalance, effective and stable rank over the head size.
BASELINES = [
    (4096, 128, 0.0078, 0.938, 0.246, 0.992, 0.637),
    (1024, 64, 0.0162, 0.938, 0.348, 0.985, 0.559),
    (768, 64, 0.0216, 0.938, 0.399, 0.978, 0.499),
    (512, 64, 0.0305, 0.922, 0.466, 0.969, 0.450),
    (384, 64, 0.0427, 0.922, 0.542, 0.957, 0.413),
    (128, 32, 0.0660, 0.906, 0.650, 0.936, 0.366),
]


@pytest.mark.parametrize(("width", "size", "gap", "pseudo", "imbalance", "effective", "stable"), BASELINES)
def test_the_baselines_of_random_heads(
    width: int, size: int, gap: float, pseudo: float, imbalance: float, effective: float, stable: float
) -> None:
    null = null_model((width, size, width))
    assert null.relative_gap().mean == pytest.approx(gap, rel=0.05)
    assert null.value("pseudo_rank").mean == pytest.approx(pseudo, rel=0.05)
    assert null.relative_imbalance().mean == pytest.approx(imbalance, rel=0.05)
    assert null.value("effective_rank").mean / size == pytest.approx(effective, rel=0.05)
    assert null.value("stable_rank").mean / size == pytest.approx(stable, rel=0.05)
    # Theory for wide products: a quarter and twice the ratio of the widths.
    assert null.relative_gap().mean == pytest.approx(size / (4 * width), rel=0.1)
    assert null.relative_imbalance().mean == pytest.approx(math.sqrt(2 * size / width), rel=0.1)


@pytest.mark.parametrize(
    "widths", [(20, 8, 30), (8, 20, 30), (30, 20, 8), (12, 12), (9, 40), (25, 10, 6, 18), (6, 9, 15, 7), (15, 7, 7, 12)]
)
def test_triangles_give_the_spectra_of_whole_gaussian_factors(widths: tuple[int, ...]) -> None:
    draws = 1500
    null = null_model(widths, draws=draws)
    matrix = torch.eye(widths[0], dtype=torch.float64)
    for factor in gaussian(widths, 3, batch=(draws,)).factors:
        matrix = matrix @ factor
    direct = torch.linalg.svdvals(matrix)[:, : min(widths)]
    for found, expected in [(null.values, direct), (null.values.square(), direct.square())]:
        noise = (found.var(0) / draws + expected.var(0) / draws).sqrt()
        assert ((found.mean(0) - expected.mean(0)).abs() < 5 * noise).all()
    assert ((null.values.std(0) / direct.std(0)).log().abs() < 0.15).all()
    # The energy is exact in expectation: the product of all widths.
    energy = null.values.square().sum(-1)
    assert energy.mean().item() == pytest.approx(math.prod(widths), abs=5 * energy.std().item() / draws**0.5)


@pytest.mark.parametrize("widths", [(20, 8, 30), (8, 20, 12)])
def test_balance_of_whole_gaussian_factors(widths: tuple[int, int, int]) -> None:
    from rankwise.product.balance import balance

    report = balance(gaussian(widths, 1, batch=(800,)))
    null = null_model(widths, draws=800)
    assert null.relative_gap().mean == pytest.approx(report.relative.mean().item(), rel=0.03)
    assert null.relative_imbalance().mean == pytest.approx(report.relative_imbalance.mean().item(), rel=0.03)


def test_chains_have_a_null_at_every_junction() -> None:
    null = null_model((768, 64, 32, 768))
    assert null.relative_gaps.shape == (64, 2)
    alone = null_model((768, 64, 32))
    assert null.relative_gap(0).mean == pytest.approx(alone.relative_gap().mean, rel=0.02)
    assert null.relative_gap(1).mean > 0


def test_single_matrices_follow_the_marchenko_pastur_law() -> None:
    null = null_model((400, 100), draws=32)
    assert null.mean[0].item() == pytest.approx(20 + 10, rel=0.02)
    assert null.mean[-1].item() == pytest.approx(20 - 10, rel=0.03)
    assert null.relative_gaps.shape == (32, 0)


def test_large_matrices_are_drawn_to_scale() -> None:
    """A 512 x 1024 matrix from 256 x 512: the same law, to a part in 256."""
    null = null_model((512, 1024), draws=8)
    direct = torch.linalg.svdvals(gaussian((512, 1024), 0, dtype=torch.float32).left).double()
    assert null.values.shape == (8, 512)
    assert ((null.mean / direct).log().abs() < 0.02).float().mean() > 0.98
    assert null.value("stable_rank").mean == pytest.approx((direct.square().sum() / direct[0] ** 2).item(), rel=0.02)
    assert null.edge > direct[0].item()
    assert null.edge < 1.1 * direct[0].item()


def test_the_edge_is_exceeded_by_one_random_product_in_a_thousand() -> None:
    null = null_model((60, 10, 60))
    largest = null_model((60, 10, 60), draws=4000, seed=1).values[:, 0]
    assert (largest > null.edge).double().mean().item() < 0.004
    assert null.edge < largest.max().item() * 1.05


def test_global_random_state_is_neither_read_nor_moved() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = null_model((31, 7, 29), seed=11)
    assert torch.equal(torch.get_rng_state(), before)
    assert null_model((31, 7, 29), seed=11) is one
    assert null_model([31, 7, 29], seed=11) is one
    assert not torch.equal(null_model((31, 7, 29), seed=12).values, one.values)


def test_scaling_to_a_product_and_to_a_spectrum() -> None:
    p = gaussian((64, 8, 48), 0, batch=(3,))
    scales = torch.tensor([1.0, 5.0, 0.01], dtype=torch.float64)
    p = Product(p.left * scales[:, None, None], p.right)
    null = null_model(p.widths)
    for scaled, tolerance in [(null.scaled(p), 0.15), (null.scaled(p.spectrum()), 0.15)]:
        assert scaled.scale.shape == (3,)
        assert ((scaled.scale / scales - 1).abs() < tolerance).all()
        torch.testing.assert_close(scaled.mean, scaled.scale[:, None] * null.mean)
        assert scaled.edge.shape == (3,)
        assert scaled.spread.shape == (3, 8)
    with pytest.raises(UserError, match="null_model"):
        null.scaled(p.T)
    change = p - p * 0.5
    with pytest.raises(UserError, match="spectrum"):
        null_model(change.widths).scaled(change)


def test_quantiles_are_ordered() -> None:
    null = null_model((20, 8, 30))
    levels = [null.quantile(level) for level in (0.0, 0.25, 0.5, 0.75, 1.0)]
    for low, high in pairwise(levels):
        assert (low <= high).all()
    assert null.draws == 64


def test_wrong_widths_get_one_line() -> None:
    for widths in ((5,), (), (5, 0, 5)):
        with pytest.raises(UserError, match="widths"):
            null_model(widths)
    with pytest.raises(UserError, match="two draws"):
        null_model((5, 5), draws=1)
