"""Work shared out over threads comes back in order, with the same values and the same errors."""

from __future__ import annotations

import pytest
import torch

from rankwise.product import parallel
from rankwise.product.parallel import on_all_cores, share_out
from tests.product.draws import gaussian

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 7, 9, 50])
def test_values_do_not_depend_on_the_threads(count):
    matrices = gaussian([5, 5], 0, batch=(2, count)).left
    found = on_all_cores(torch.linalg.svdvals, matrices)
    # Not bit by bit: on some processors the kernels depend on where in memory a matrix lies.
    torch.testing.assert_close(found, torch.linalg.svdvals(matrices), rtol=0, atol=1e-14)


def test_order_is_kept_and_the_callers_threads_are_left_alone():
    assert share_out(lambda number: number * 2, list(range(20)), CPU) == [2 * number for number in range(20)]
    assert torch.get_num_threads() == 2


def test_every_thread_computes_on_one_core():
    assert set(share_out(lambda _: torch.get_num_threads(), list(range(8)), CPU)) == {1}


def test_an_error_in_a_thread_reaches_the_caller():
    matrices = torch.zeros(4 * parallel.SMALLEST_SHARE, 2, 2)
    with pytest.raises(torch.linalg.LinAlgError):
        on_all_cores(torch.linalg.inv, matrices)
