"""AdamW's fixed points without noise: which penalty its decay amounts to."""

from __future__ import annotations

import pytest
import torch

from rankwise.errors import UserError
from rankwise.theory import adamw_bias, adamw_point


def bowl(seed: int, size: int = 5):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(size, size, generator=generator, dtype=torch.float64) / size**0.5
    centre = 2 * torch.randn(size, generator=generator, dtype=torch.float64)
    matrix = mixing @ mixing.mT + 0.3 * torch.eye(size, dtype=torch.float64)
    return lambda w: (w - centre) @ matrix @ (w - centre) / 2


@pytest.mark.slow
@pytest.mark.parametrize(("decay", "eps"), [(0.5, 0.1), (1.0, 0.05)])
def test_noiseless_fixed_points_are_minima_of_the_equivalent_penalty(decay, eps) -> None:
    found = adamw_point(bowl(0), torch.zeros(5), decay=decay, eps=eps)
    assert found.weights.error < 1e-4
    assert found.slope.relative_error < 1e-3
    assert float(found.weights.simulated.abs().max()) < found.box


def test_small_weights_feel_an_l2_penalty_of_eps_times_decay_and_large_ones_a_box() -> None:
    centre = torch.tensor([0.02, 5.0], dtype=torch.float64)
    found = adamw_point(lambda w: (w - centre).square().sum() / 2, torch.zeros(2), decay=0.5, eps=0.2, steps=1500)
    assert found.weights.error < 1e-3
    assert found.weights.simulated[0].item() == pytest.approx(0.02 / 1.1, rel=1e-2)
    assert 0.9 * found.box < found.weights.simulated[1].item() < found.box


@pytest.mark.slow
def test_decay_prefers_the_least_l2_norm_of_weights_and_the_least_l1_norm_of_products() -> None:
    found = adamw_bias(torch.tensor([1.0, 0.5]), steps=3000)
    assert found.direct.error < 0.02
    assert found.product.error < 0.02
    assert found.same_direct.error < 0.02
    assert found.same_product.error < 0.02
    # The two ends are far apart: the test can tell them.
    assert float((found.direct.simulated - found.product.simulated).abs().max()) > 0.3


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: adamw_point(bowl(0), 9 * torch.ones(5), decay=0.5, eps=0.1), "within the box .w. < 1 / lam = 2"),
        (lambda: adamw_point(bowl(0), torch.ones(5), decay=0.0, eps=0.1), "need a positive one"),
        (lambda: adamw_bias(torch.ones(2)), "one of them the largest"),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
