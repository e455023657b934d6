"""Spectra of many products at once: those of one shape are stacked and computed as one batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

import torch

from rankwise.product.parallel import share_out
from rankwise.product.product import Product, Start
from rankwise.product.spectrum import MEMORY, Method, Spectrum, spectrum

# A product this large keeps all cores busy by itself; smaller ones are stacked up to this size, a stack for each core.
LARGE = 1 << 23


def spectra(
    products: Sequence[Product], *, method: Method = "auto", tolerance: float = 1e-6, memory: int = MEMORY
) -> list[Spectrum]:
    """The spectra of many products, in their order; small ones of equal shapes are stacked and computed together.

    Arguments:
        products: any mixture of shapes, types and devices.
        method, tolerance: as for one spectrum.
        memory: how many bytes copies and intermediate results may take at a time.

    >>> one, two = spectra([Product(torch.eye(2)), Product(2 * torch.eye(2))])
    >>> two.values
    tensor([2., 2.], dtype=torch.float64)
    """
    buckets: dict[Hashable, list[int]] = defaultdict(list)
    for index, product in enumerate(products):
        buckets[_likeness(product)].append(index)
    results: dict[int, Spectrum] = {}

    def compute(batch: list[int], allowed: int) -> None:
        members = [products[index] for index in batch]
        if len(members) == 1:
            found = [spectrum(members[0], method=method, tolerance=tolerance, memory=allowed)]
        else:
            found = spectrum(stacked(members), method=method, tolerance=tolerance, memory=allowed)
        results.update(zip(batch, found, strict=True))

    share = max(1, memory // torch.get_num_threads())
    for indices in buckets.values():
        size = _bytes(products[indices[0]])
        batches = list(_batches(indices, size, share))
        if size >= LARGE:
            for batch in batches:
                compute(batch, memory)
        else:
            share_out(lambda batch: compute(batch, share), batches, products[indices[0]].device)
    return [results[index] for index in range(len(products))]


def stacked(products: Sequence[Product]) -> Product:
    """Products of equal shapes as one stack, with a batch axis in front; the factors are copied.

    >>> stacked([Product(torch.eye(2)), Product(torch.eye(2))])
    Product(2 of 2x2, float32)
    """
    rank = len(products[0].batch_shape)
    # Factors with fewer batch axes broadcast from the right: the new axis has to come before all of them.
    factors = [
        torch.stack([factor.reshape((1,) * (rank + 2 - factor.ndim) + factor.shape) for factor in same])
        for same in zip(*(product.factors for product in products), strict=True)
    ]
    starts = [product.start for product in products if product.start is not None]
    if not starts:
        return Product(*factors)
    norm = torch.stack([start.norm.expand(products[0].batch_shape) for start in starts])
    return Product(*factors, start=Start(norm, starts[0].floor))


def _likeness(product: Product) -> Hashable:
    """What two products must have in common to be stacked."""
    floor = None if product.start is None else product.start.floor
    return (*((factor.shape, factor.dtype) for factor in product.factors), product.device, floor)


def _bytes(product: Product) -> int:
    return sum(factor.numel() * factor.element_size() for factor in product.factors)


def _batches(indices: list[int], size: int, memory: int) -> Iterator[list[int]]:
    step = max(1, min(memory, LARGE) // (size + 1))
    return (indices[start : start + step] for start in range(0, len(indices), step))
