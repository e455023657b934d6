"""Picking, splitting and escalating keep every matrix in its place."""

from __future__ import annotations

import pytest
import torch

from rankwise.product import ladder
from rankwise.product.ladder import climb, float32_unit, pick, split
from rankwise.product.product import Product
from tests.product.draws import gaussian, with_values


def grouped() -> Product:
    return Product(gaussian([4, 2], 0, batch=(2, 3, 5)).left, gaussian([2, 6], 1, batch=(3, 1)).left)


def test_picked_matrices_are_those_asked_for():
    product = grouped()
    dense = product.dense().flatten(0, -3)
    for indices in ([0], [29], [3, 17, 4], list(range(30))):
        chosen = pick(product, torch.tensor(indices))
        torch.testing.assert_close(chosen.dense().reshape(-1, 4, 6), dense[indices])


@pytest.mark.parametrize("limit", [1, 2, 4, 5, 7, 15, 16, 30, 99])
def test_parts_follow_one_another_and_keep_what_is_shared(limit):
    product = grouped()
    parts = list(split(product, limit))
    assert all(part.count <= limit for part in parts)
    together = torch.cat([part.dense().reshape(-1, 4, 6) for part in parts])
    torch.testing.assert_close(together, product.dense().flatten(0, -3))
    assert all(part.right.shape[-3] == 1 for part in parts)


def test_only_what_is_pending_climbs_on(monkeypatch):
    hard = with_values([1, 1e-10, 1e-11], 6, 5, 0)
    easy = gaussian([6, 3, 5], 1)
    product = Product(*(torch.stack([one, two, two]) for one, two in zip(hard.factors, easy.factors, strict=True)))
    counts = []
    plain = ladder.METHOD_STEPS["qr"]

    def counting(part, tolerance):
        counts.append(part.count)
        return plain.compute(part, tolerance)

    monkeypatch.setitem(ladder.METHOD_STEPS, "qr", ladder.Step(counting, plain.bytes))
    climbed = climb(product, method="auto", tolerance=1e-9, memory=2**30)
    assert climbed.methods == ["qr", "gram64", "gram64"]
    assert counts == [1]


def test_grams_in_float32_know_when_torch_shortens_their_inputs(monkeypatch):
    assert float32_unit() == 2.0**-24
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert float32_unit() == 2.0**-10
    easy = gaussian([40, 4, 40], 0, dtype=torch.float32)
    assert climb(easy, method="auto", tolerance=1e-2, memory=2**30).methods == ["gram64"]
