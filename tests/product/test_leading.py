"""The largest value of big matrices, and a bound of its error that is broken no more often than it says."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product import leading
from rankwise.product.leading import leading_value, outline
from rankwise.product.product import Product
from tests.product.draws import frame, gaussian, with_values

# Where the iteration has it easy and where not: a top that stands alone, crowds, or hides just above a crowd.
DIAGONALS: dict[str, Callable[[int], Tensor]] = {
    "even": lambda count: torch.arange(1.0, count + 1),
    "power law": lambda count: torch.arange(1.0, count + 1) ** -0.5,
    "crowded": lambda count: 1 - torch.logspace(-6, 0, count),
    "hidden": lambda count: torch.cat([torch.tensor([1.001]), torch.linspace(1, 0, count - 1)]),
    "equal": lambda count: torch.ones(count),
    "alone": lambda count: torch.cat([torch.tensor([1.0]), torch.full((count - 1,), 1e-3)]),
    "few": lambda count: torch.cat([torch.tensor([3.0, 2.0, 1.0]), torch.zeros(count - 3)]),
}


def known(kind: str, rows: int, columns: int, seed: int) -> tuple[Product, float]:
    """A matrix with known singular values in random frames, and the largest of them."""
    values = DIAGONALS[kind](min(rows, columns)).double()
    ends = (frame(size, len(values), seed + place) for place, size in enumerate((rows, columns)))
    left, right = ends
    return Product((left * values) @ right.mT), float(values.max())


@settings(max_examples=30)
@given(
    kind=st.sampled_from(list(DIAGONALS)),
    sizes=st.sampled_from([(80, 66), (66, 150), (140, 140)]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    tolerance=st.sampled_from([1.0, 1e-2, 1e-4, 1e-7]),
    seed=st.integers(0, 2**31),
)
def test_the_error_holds(kind: str, sizes: tuple[int, int], dtype: torch.dtype, tolerance: float, seed: int) -> None:
    product = known(kind, *sizes, seed)[0].to(dtype)
    found = leading_value(product, tolerance=tolerance, seed=seed)
    truth = torch.linalg.matrix_norm(product.left.double(), 2)
    assert found.method == "krylov"
    assert abs(found.value - truth) <= found.error


@pytest.mark.parametrize("kind", DIAGONALS)
def test_the_tolerance_is_met(kind: str) -> None:
    product, largest = known(kind, 300, 260, 3)
    found = leading_value(product)
    assert abs(found.value.item() - largest) <= found.error.item() <= 1.1e-3 * largest


@pytest.mark.parametrize("kind", DIAGONALS)
def test_nothing_escapes_that_the_start_has_seen(kind: str) -> None:
    """With the part of the start along the leading vector as it is, in place of its least likely length."""
    values = DIAGONALS[kind](90).double()
    largest = int(values.argmax())
    widest = 0.0
    for seed in range(20):
        start = frame(90, leading.BLOCK, seed)
        basis, pulled, block = start, start[:, :0], start
        for _ in range(6):
            new = values.square()[:, None] * block
            pulled = torch.cat([pulled, new], -1)
            block, triangle = leading._next_block(new, basis)
            top, excess = leading._top_and_excess(basis.mT @ pulled, triangle, start[largest].norm())
            missed = values.max().square() - top
            assert missed <= excess + 1e-12 * top
            widest = max(widest, float(missed / excess))
            basis = torch.cat([basis, block], -1)
    # The bound is of the right size: at times what was missed is a good part of it.
    assert widest > 0.2 or kind not in ("even", "hidden")


def test_a_larger_chance_allows_a_smaller_error() -> None:
    product, _ = known("even", 90, 90, 0)
    errors = [leading_value(product, tolerance=math.inf, chance=chance).error for chance in (1e-12, 1e-6, 0.5)]
    assert errors[0] > 1.2 * errors[1] > 2 * errors[2] > 0


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-40, 1e-30, 1e30, 1e37, 1e200, 1e305])
def test_any_scale_gives_the_same_digits(scale: float) -> None:
    dtype = torch.float32 if 1e-40 <= scale <= 1e37 else torch.float64
    matrix = gaussian([120, 80], 0).left * scale
    found, plain = (outline(Product(one)) for one in (matrix.to(dtype), gaussian([120, 80], 0).left))
    for name, power in (("frobenius_norm", scale), ("operator_norm", scale), ("stable_rank", 1.0)):
        # Float32 below its normal range has few digits left; the type, not the method, decides.
        allowed = 1e-4 if scale == 1e-40 else 3e-5
        assert found[name].value.item() / power == pytest.approx(plain[name].value.item(), rel=allowed)
        assert 0 < found[name].error.item() / power < 1e-2 * plain[name].value.item()


def test_the_outline_is_that_of_the_dense_matrices() -> None:
    product = gaussian([100, 170], 4, batch=(2, 3), dtype=torch.bfloat16)
    values = torch.linalg.svdvals(product.left.double())
    truth = {
        "frobenius_norm": values.square().sum(-1).sqrt(),
        "operator_norm": values[..., 0],
        "stable_rank": values.square().sum(-1) / values[..., 0].square(),
    }
    found = outline(product)
    assert set(found) == set(truth)
    for name, expected in truth.items():
        assert bool(((found[name].value - expected).abs() <= found[name].error).all()), name
        assert bool((found[name].error <= 3e-3 * expected).all()), name


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_matrix_is_marked_and_costs_the_others_nothing(bad: float) -> None:
    matrices = gaussian([90, 70], 1, batch=(5,), dtype=torch.float32).left
    matrices[1, 40, 7] = bad
    matrices[2] = 0
    matrices[3] = with_values([2.0], 90, 70, 0).dense().float()
    for name, measured in outline(Product(matrices)).items():
        assert measured.value.isfinite().tolist() == [True, False, True, True, True], name
        assert measured.error.isfinite().tolist() == [True, False, True, True, True], name
        assert measured.value[2] == measured.error[2] == 0
    largest = leading_value(Product(matrices))
    truth = torch.linalg.matrix_norm(matrices[[0, 3, 4]].double(), 2)
    assert bool(((largest.value[[0, 3, 4]] - truth).abs() <= largest.error[[0, 3, 4]]).all())
    assert leading_value(Product(matrices[1])).value.isnan()


def test_views_are_read_as_they_lie() -> None:
    wide = gaussian([300, 200], 2).left
    truth = torch.linalg.matrix_norm(wide[::3, 1::2], 2)
    for view in (wide[::3, 1::2], wide[::3, 1::2].mT, wide[::3, 1::2].expand(2, 100, 100)):
        found = leading_value(Product(view))
        assert bool(((found.value - truth).abs() <= found.error).all())


def test_pieces_of_a_matrix_that_is_not_copied_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    product = gaussian([150, 90], 5, batch=(2,), dtype=torch.bfloat16)
    whole = leading_value(product)
    monkeypatch.setattr(leading, "COPY", 0)
    monkeypatch.setattr(leading, "CHUNK", 1000)
    pieces = leading_value(product)
    torch.testing.assert_close(pieces.value, whole.value, rtol=1e-5, atol=0)


def test_the_seed_is_its_own() -> None:
    product = gaussian([90, 90], 6)
    torch.manual_seed(1)
    one, state = leading_value(product), torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())
    assert one.value == leading_value(product).value
    assert one.value != leading_value(product, seed=1).value


def test_small_matrices_and_empty_batches() -> None:
    small = gaussian([200, 40], 7)
    assert leading_value(small).method == "gram64"
    assert leading_value(gaussian([80, 80], 0, batch=(0,))).value.shape == (0,)


def test_a_chain_is_sent_to_its_spectrum() -> None:
    with pytest.raises(UserError, match=r"takes single matrices, .* has 2 factors: use .spectrum"):
        leading_value(gaussian([80, 70, 80], 0))
