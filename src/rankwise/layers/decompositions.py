"""Tensors brought into a form by tensorly, and balanced."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rankwise.errors import UserError, require
from rankwise.layers.tensor_ranks import KINDS, Form
from rankwise.product.arithmetic import without_autocast
from rankwise.product.guarded import thin_svd
from rankwise.product.tensor_forms import TensorForm

# Alternating least squares stop when the error no longer falls by this share, or after so many rounds.
TOLERANCE = 1e-8
ROUNDS = 100


@torch.no_grad()
def decomposed(tensor: Tensor, form: Form, ranks: Sequence[int]) -> TensorForm:
    """A tensor approximated in a form of given ranks, every junction balanced; computed in float64.

    Tensor train: TT-SVD, within `sqrt(modes - 1)` of the best error. Tucker: HOSVD, improved by orthogonal iteration.
    CP: alternating least squares from the HOSVD, which finds a good approximation and not a certain one; the same
    tensor always gives the same cores. Balancing changes no entry: it shares the scale, which the decompositions leave
    in one of the cores, among all.

    >>> form = decomposed(torch.ones(4, 3, 2), "tensor-train", (1, 1))
    >>> torch.allclose(form.dense(), torch.ones(4, 3, 2, dtype=torch.float64)), form.shape
    (True, torch.Size([4, 3, 2]))
    """
    if not bool(tensor.isfinite().all()):
        raise UserError(f"a weight of shape {tuple(tensor.shape)} holds NaN or Inf: it has no decomposition")
    tensorly = require("tensorly", extra="tensor")
    library = require("tensorly.decomposition", extra="tensor")
    wide = tensor.double()
    with without_autocast(tensor.device), tensorly.backend_context("pytorch", local_threadsafe=True):
        if form == "tensor-train":
            cores = tuple(library.tensor_train(wide, [1, *ranks, 1]).factors)
        elif form == "tucker":
            core, matrices = library.tucker(wide, list(ranks), init="svd", n_iter_max=ROUNDS, tol=TOLERANCE)
            cores = (core, *matrices)
        else:
            start = (None, [_leading(wide, mode, ranks[0]) for mode in range(wide.ndim)])
            found = library.parafac(wide, ranks[0], init=start, n_iter_max=ROUNDS, tol=TOLERANCE)
            cores = (found.factors[0] * found.weights, *found.factors[1:])
    return KINDS[form](cores).balanced()


def _leading(tensor: Tensor, mode: int, count: int) -> Tensor:
    """The leading singular vectors along a mode, and where it has no more of them random ones, always the same."""
    vectors = thin_svd(tensor.movedim(mode, 0).flatten(1))[0][:, :count]
    generator = torch.Generator().manual_seed(mode)
    more = torch.randn(tensor.shape[mode], count - vectors.shape[1], generator=generator, dtype=torch.float64)
    return torch.cat([vectors, more.to(vectors.device)], 1)
