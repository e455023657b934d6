"""Dense decompositions of a batch in which one bad matrix does not cost the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.product.parallel import SMALLEST_SHARE, share_out

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

NOT_FINITE = "a factor holds NaN or Inf"
NO_CONVERGENCE = "the decomposition did not converge"


@dataclass(frozen=True)
class Decomposition:
    """Outputs of a batched decomposition: NaN where it failed, with the reason for each flattened batch index."""

    outputs: tuple[Tensor, ...]
    failures: Mapping[int, str]


def guarded(decompose: Callable[[Tensor], tuple[Tensor, ...]], matrices: Float[Tensor, "*batch m n"]) -> Decomposition:
    """Decompose every matrix of a batch; those that are not finite or do not converge are marked, and nothing raises.

    Arguments:
        decompose: a batched decomposition that returns a tuple of tensors, such as `thin_svd`.
        matrices: the batch; entries that are not finite are replaced by zeros for the call.

    >>> singular = guarded(thin_svd, torch.tensor([[[3.0]], [[torch.nan]]]))
    >>> singular.outputs[1].flatten().tolist(), dict(singular.failures)
    ([3.0, nan], {1: 'a factor holds NaN or Inf'})
    """
    batch = matrices.shape[:-2]
    usable = finite(matrices)
    clean = matrices if bool(usable.all()) else torch.where(usable[..., None, None], matrices, 0.0)
    failures = {int(index): NOT_FINITE for index in (~usable).flatten().nonzero().flatten()}
    try:
        outputs = _on_all_cores(decompose, clean)
    except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
        outputs, stuck = _one_by_one(decompose, clean.flatten(0, -3) if batch else clean[None])
        outputs = tuple(output.reshape(*batch, *output.shape[1:]) for output in outputs)
        failures |= {index: NO_CONVERGENCE for index in stuck if index not in failures}
    return Decomposition(tuple(blank(output, len(batch), failures) for output in outputs), failures)


def thin_svd(matrices: Float[Tensor, "*batch m n"]) -> tuple[Tensor, Tensor, Tensor]:
    """`U, S, V^T` with as many singular triplets as the smaller dimension."""
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    return left, values, right


def finite(matrices: Float[Tensor, "*batch m n"]) -> Bool[Tensor, "*batch"]:
    """Which matrices of a batch hold neither NaN nor Inf."""
    return torch.linalg.vector_norm(matrices, ord=torch.inf, dim=(-2, -1)).isfinite()


def blank(output: Tensor, batch_dimensions: int, failures: Mapping[int, str]) -> Tensor:
    """The same batch with NaN in place of the matrices that failed."""
    if not failures:
        return output
    flat = output.reshape(-1, *output.shape[batch_dimensions:]).clone()
    flat[list(failures)] = torch.nan
    return flat.reshape(output.shape)


def _on_all_cores(decompose: Callable[[Tensor], tuple[Tensor, ...]], matrices: Tensor) -> tuple[Tensor, ...]:
    """Share the batch out over the cores: torch decomposes one matrix after another."""
    batch = matrices.shape[:-2]
    shares = min(torch.get_num_threads(), batch.numel() // SMALLEST_SHARE)
    if matrices.device.type != "cpu" or shares < 2:
        return decompose(matrices)
    parts = matrices.reshape(-1, *matrices.shape[-2:]).tensor_split(shares)
    results = share_out(decompose, parts, matrices.device)
    joined = (torch.cat(pieces) for pieces in zip(*results, strict=True))
    return tuple(output.reshape(*batch, *output.shape[1:]) for output in joined)


def _one_by_one(decompose: Callable[[Tensor], tuple[Tensor, ...]], matrices: Tensor) -> tuple[tuple[Tensor, ...], list]:
    results: list[tuple[Tensor, ...] | None] = []
    for matrix in matrices:
        try:
            results.append(decompose(matrix))
        except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
            results.append(None)
    stuck = [index for index, result in enumerate(results) if result is None]
    # The shapes of the outputs do not depend on the entries: zeros always decompose.
    substitute = decompose(torch.zeros_like(matrices[0]))
    filled = [substitute if result is None else result for result in results]
    return tuple(torch.stack(outputs) for outputs in zip(*filled, strict=True)), stuck
