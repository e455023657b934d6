"""One bad matrix in a batch is marked; the others come out as they would alone."""

from __future__ import annotations

import torch

from rankwise.product.guarded import NO_CONVERGENCE, NOT_FINITE, guarded, thin_svd
from tests.product.draws import gaussian


def test_matrices_that_are_not_finite_are_marked_and_the_rest_is_untouched() -> None:
    matrices = gaussian((4, 3), 0, batch=(2, 3)).left.clone()
    expected = torch.linalg.svdvals(matrices)
    matrices[0, 1, 2, 2] = torch.nan
    matrices[1, 2, 0, 0] = -torch.inf
    result = guarded(thin_svd, matrices)
    assert dict(result.failures) == {1: NOT_FINITE, 5: NOT_FINITE}
    good = torch.tensor([[True, False, True], [True, True, False]])
    torch.testing.assert_close(result.outputs[1][good], expected[good])
    for output in result.outputs:
        assert output[~good].isnan().all()


def test_a_decomposition_that_fails_for_one_matrix_is_retried_one_by_one() -> None:
    def moody(matrices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if (matrices == 7.0).any():
            raise torch.linalg.LinAlgError("no convergence")
        return thin_svd(matrices)

    matrices = gaussian((3, 3), 1, batch=(2, 2)).left.clone()
    matrices[1, 0, 0, 0] = 7.0
    result = guarded(moody, matrices)
    assert dict(result.failures) == {2: NO_CONVERGENCE}
    assert result.outputs[1].shape == (2, 2, 3)
    assert result.outputs[1][1, 0].isnan().all()
    torch.testing.assert_close(result.outputs[1][0], torch.linalg.svdvals(matrices[0]))


def test_a_single_matrix_needs_no_batch() -> None:
    assert dict(guarded(thin_svd, torch.full((2, 2), torch.nan)).failures) == {0: NOT_FINITE}
    assert guarded(thin_svd, torch.eye(2)).outputs[1].tolist() == [1.0, 1.0]
