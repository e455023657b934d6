"""A two-layer network on whitened data beside a single matrix."""

from __future__ import annotations

import pytest
import torch

from rankwise.errors import UserError
from rankwise.theory import (
    whitened_network,
)


def test_a_whitened_network_and_a_single_matrix() -> None:
    found = whitened_network(torch.tensor([1.0, 0.7, 0.45, 0.2]), decay=0.3, width=6)
    for both in (found.values, found.rows, found.orthogonality, found.shared, found.single):
        assert both.error < 1e-6
    assert found.ranks == (3, 4)
    assert found.escape.relative_error < 1e-6


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: whitened_network(torch.tensor([1.0, 0.3]), decay=0.3), "at the threshold 0.3"),
    ],
)
def test_bad_input_gets_one_line(call, text) -> None:
    with pytest.raises(UserError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
