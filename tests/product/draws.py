"""Random products and products of known singular values, for the tests beside this file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from rankwise.product.product import Product
from rankwise.product.spectrum import Spectrum


def gaussian(
    widths: Sequence[int], seed: int, *, batch: tuple[int, ...] = (), dtype: torch.dtype = torch.float64
) -> Product:
    """Independent normal factors of the given widths."""
    generator = torch.Generator().manual_seed(seed)
    return Product(
        *(
            torch.randn(*batch, rows, columns, generator=generator, dtype=torch.float64, device="cpu").to(dtype)
            for rows, columns in pairwise(widths)
        )
    )


def frame(rows: int, columns: int, seed: int) -> Tensor:
    """Random orthonormal columns."""
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(rows, columns, generator=generator, dtype=torch.float64)).Q


def with_values(values: Sequence[float], m: int, n: int, seed: int) -> Product:
    """A product with the given singular values, in random frames and a random gauge of two equal shares."""
    roots = torch.tensor(values, dtype=torch.float64).sqrt()
    turn = frame(len(values), len(values), seed + 2)
    left = frame(m, len(values), seed) * roots @ turn
    right = turn.mT @ (frame(n, len(values), seed + 1) * roots).mT
    return Product(left, right)


def spectrum(values: Sequence[float] | Tensor, error: float = 0.0) -> Spectrum:
    """A spectrum of given values, each with the same error."""
    tensor = torch.as_tensor(values, dtype=torch.float64)
    return Spectrum(tensor, method="known", error=torch.full_like(tensor, error))
