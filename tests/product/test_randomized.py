"""Leading triplets within a random subspace, and what they miss, against whole decompositions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import UserError
from rankwise.product import randomized
from rankwise.product.product import Product
from rankwise.product.randomized import project
from tests.product.draws import frame, gaussian


def decaying(rows: int, columns: int, power: float, seed: int) -> tuple[Product, torch.Tensor]:
    """A matrix with singular values `i^-power` in random frames, and those values."""
    count = min(rows, columns)
    values = torch.arange(1.0, count + 1, dtype=torch.float64) ** -power
    return Product(frame(rows, count, seed) * values @ frame(columns, count, seed + 1).mT), values


@settings(max_examples=25)
@given(
    sizes=st.sampled_from([(200, 150), (120, 300), (64, 64)]),
    power=st.sampled_from([0.0, 0.5, 2.0, 6.0]),
    k=st.integers(1, 40),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    seed=st.integers(0, 2**31),
)
def test_what_is_said_of_the_triplets_is_so(
    sizes: tuple[int, int], power: float, k: int, dtype: torch.dtype, seed: int
) -> None:
    product = decaying(*sizes, power, seed)[0].to(dtype)
    matrix = product.left.double()
    truth = torch.linalg.svdvals(matrix)
    found = project(product, k, seed=seed)
    left, right, values = found.left.double(), found.right.double(), found.values.double()
    assert values.shape == found.residual.shape == (k,)
    torch.testing.assert_close(left.mT @ left, torch.eye(k).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(right.mT @ right, torch.eye(k).double(), rtol=0, atol=1e-12)
    assert bool((values <= truth[:k] + 1e-12).all())
    nearest = (truth - values[:, None]).abs().amin(-1)
    assert bool((nearest <= found.residual + 1e-13).all())
    assert found.energy == pytest.approx(truth.square().sum().item(), rel=1e-12)
    for rank in {0, 1, k // 2, k}:
        rest = matrix - (left[:, :rank] * values[:rank]) @ right[:, :rank].mT
        assert found.missed(rank) == pytest.approx(rest.norm().item(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("small", [1024, 0])
def test_a_small_rest_is_not_lost_in_the_energy(monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    """A rank of 4 and noise of a millionth: a difference of float32 energies would see nothing below a thousandth."""
    monkeypatch.setattr(randomized, "SMALL", small)
    low_rank = gaussian([300, 4], 0).left @ gaussian([4, 250], 1).left
    matrix = (low_rank / low_rank.norm()).float()
    noise = gaussian([300, 250], 2, dtype=torch.float32).left
    matrix = matrix + 1e-6 * noise / noise.norm()
    truth = torch.linalg.svdvals(matrix.double())[4:].norm().item()
    assert project(Product(matrix), 4).missed(4) == pytest.approx(truth, rel=0.1)


def test_leading_directions_of_a_slow_decay_are_found() -> None:
    product, values = decaying(400, 300, 0.5, 3)
    found = project(product, 8)
    torch.testing.assert_close(found.values, values[:8], rtol=5e-3, atol=0)


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-38, 1e-30, 1e30, 1e37, 1e150, 1e305])
def test_norms_of_any_scale(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    monkeypatch.setattr(randomized, "SMALL", 0)
    matrix = gaussian([200, 150], 4).left
    dtype = torch.float32 if 1e-38 <= scale <= 1e37 else torch.float64
    found, plain = project(Product((matrix * scale).to(dtype)), 5), project(Product(matrix), 5)
    torch.testing.assert_close(found.values.double() / scale, plain.values, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.residual / scale, plain.residual, rtol=1e-3, atol=1e-3)
    assert found.missed(5) / scale == pytest.approx(plain.missed(5), rel=1e-5)


def test_the_seed_is_its_own() -> None:
    product, _ = decaying(120, 110, 0.5, 0)
    state = torch.get_rng_state()
    assert torch.equal(project(product, 4).values, project(product, 4).values)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(project(product, 4).left, project(product, 4, seed=1).left)


def test_a_zero_matrix_has_zeros() -> None:
    found = project(Product(torch.zeros(100, 100)), 3)
    assert found.values.tolist() == [0.0] * 3
    assert found.energy == found.tail == found.missed(0) == 0.0
    assert not math.isnan(found.residual.sum().item())


@pytest.mark.parametrize(
    ("product", "k", "message"),
    [
        (gaussian([4, 4], 0), 0, "ask for 1 to so many, got k=0"),
        (gaussian([4, 4], 0), 5, "has 4 singular triplets"),
        (gaussian([4, 2, 4], 0), 1, "takes one single matrix"),
        (gaussian([4, 4], 0, batch=(2,)), 1, "takes one single matrix"),
    ],
)
def test_wrong_arguments_get_one_line(product: Product, k: int, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        project(product, k)
    assert "\n" not in str(error.value)
