"""Kinks are found in the graph, wherever they stand; smooth functions pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from rankwise.errors import UserError
from rankwise.theory.smooth import check_smooth

DATA = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda q: functional.relu(DATA @ q).sum(), "ReLU"),
        (lambda q: functional.leaky_relu(q).sum(), "leaky ReLU"),
        (lambda q: functional.elu(q).sum(), "ELU"),
        (lambda q: functional.prelu(q, torch.ones(1).double()).sum(), "PReLU"),
        (lambda q: functional.hardtanh(q).sum(), "a hard tanh or ReLU6"),
        (lambda q: functional.hardswish(q).sum(), "hard swish"),
        (lambda q: q.clamp(min=0).sum(), "clamping"),
        (lambda q: (DATA @ q - 1).abs().sum(), "an absolute value"),
        (lambda q: functional.smooth_l1_loss(q, q.detach() + 1), "the smooth-l1 loss"),
        (lambda q: functional.huber_loss(q, q.detach() + 1), "the Huber loss"),
        (lambda q: torch.maximum(q, torch.zeros(())).sum(), "an elementwise maximum"),
        (lambda q: functional.threshold(q, 0.0, 0.0).sum(), "a threshold"),
        (lambda q: functional.max_pool2d((DATA * q).view(1, 1, 5, 4), 2).sum(), "max pooling"),
    ],
)
def test_a_function_with_a_kink_is_refused_by_its_name(function, name: str) -> None:
    with pytest.raises(UserError, match=f"through {name}, which has no second derivative"):
        check_smooth(function, size=4)


@pytest.mark.parametrize(
    "function",
    [
        lambda q: functional.gelu(DATA @ q).sum(),
        lambda q: functional.softplus(DATA @ q).sum(),
        lambda q: torch.softmax(DATA * q, -1).square().sum(),
        lambda q: functional.cross_entropy(DATA * q, torch.arange(5) % 4),
        lambda q: functional.layer_norm(DATA * q, [4]).pow(3).sum(),
        lambda q: torch.logsumexp(DATA @ q, 0),
        # A kink that the weights do not pass through does not matter.
        lambda q: (functional.relu(DATA) @ q).square().sum(),
    ],
)
def test_smooth_functions_pass(function) -> None:
    check_smooth(function, size=4)


def test_a_kink_deep_inside_a_module_is_found() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, dtype=torch.float64)
    smooth = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, dtype=torch.float64, activation="gelu")
    with pytest.raises(UserError, match="ReLU"):
        check_smooth(lambda q: layer((DATA * q)[None]).sum(), size=4)
    check_smooth(lambda q: smooth((DATA * q)[None]).sum(), size=4)


def test_what_is_no_differentiable_scalar_is_refused() -> None:
    for function, text in (
        (lambda q: q, "expected a scalar"),
        (lambda q: q.float().sum(), "expected torch.float64"),
        (lambda q: q.detach().sum(), "does not depend on the products"),
    ):
        with pytest.raises(UserError, match=text):
            check_smooth(function, size=4)
