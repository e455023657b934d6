"""The certificate tells minima of the nuclear norm from saddles, and how steep these are."""

from __future__ import annotations

import pytest
import torch

from rankwise.theory import MatrixLoss, certificate, equilibria, lifted


def test_points_that_are_not_stationary_do_not_correspond() -> None:
    loss = MatrixLoss.denoising(torch.diag(torch.tensor([1.0, 0.8, 0.5])))
    found = certificate(loss, torch.eye(3), torch.eye(3), decay=0.3)
    assert found.residual > 0.1
    assert found.aligned.error > 0.1


@pytest.mark.parametrize(("missing", "lam"), [(0.8, 0.3), (0.5, 0.3), (0.5, 0.1)])
def test_a_saddle_bends_down_by_what_the_certificate_says(missing, lam) -> None:
    target = torch.diag(torch.tensor([1.0, missing, 0.2], dtype=torch.float64))
    left, right = lifted(torch.diag(torch.tensor([1 - lam, 0.0, 0.0], dtype=torch.float64)), rank=3)
    found = certificate(MatrixLoss.denoising(target), left, right, decay=lam)
    assert found.residual < 1e-12
    assert not found.optimal
    assert (found.rank, found.spare) == (1, 2)
    assert found.curvature.predicted.item() == pytest.approx(lam - missing, rel=1e-12)
    assert found.curvature.relative_error < 1e-6
    assert "strict saddle" in found.verdict


def test_trained_end_points_are_certified() -> None:
    target = torch.diag(torch.tensor([1.0, 0.6, 0.2], dtype=torch.float64))
    a, r = equilibria(target, decay=0.3).factors
    found = certificate(MatrixLoss.denoising(target), a[0], r[0], decay=0.3)
    assert found.optimal
    assert found.aligned.error < 1e-8
    # A direction that the width has no room for is not to be had, and is not promised.
    a, r = equilibria(target, decay=0.3, rank=1).factors
    narrow = certificate(MatrixLoss.denoising(target), a[0], r[0], decay=0.3)
    assert not narrow.optimal
    assert "among matrices of this rank" in narrow.verdict
