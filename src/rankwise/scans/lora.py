"""From the change of single matrices to a LoRA adapter: ranks from one wish, factors from the leading triplets."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from rankwise.errors import UserError
from rankwise.product.randomized import Projected, project
from rankwise.scans.adapter import Pair, check_folder, header_bytes, rounded, write_adapter
from rankwise.scans.budget import allocate
from rankwise.scans.difference import Diff
from rankwise.scans.extraction import Extracted, Extraction
from rankwise.scans.matrices import LOOKED_FOR, energy_rank, triplets, unranked
from rankwise.text import printable

# Matrices that no linear layer of a module holds, whatever the site that reads them is called.
_NOT_LINEAR = re.compile(r"(^|\.)(wte|wpe|shared|relative_attention_bias)\.weight$|norm\.weight$", re.IGNORECASE)
_SIZE = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMG]i?B|B)?\s*", re.IGNORECASE)
_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# Rows of a matrix that are compared at once.
SLAB = 4096

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The decomposed change of a linear layer, its input side to the right."""

    name: str
    module: str
    found: Projected
    unit: int
    """Bytes that one more rank costs."""


def extract_lora(
    change: Diff,
    folder: str | Path,
    *,
    rank: int | None = None,
    energy: float | None = None,
    size: int | str | None = None,
    dtype: torch.dtype = torch.float32,
    prefix: str = "",
    progress: Progress | None = None,
) -> Extraction:
    """Write the change of a fine-tune as a PEFT adapter.

    Arguments:
        change: what `rw.diff` found.
        folder: where the adapter goes; it must not exist yet, or be empty.
        rank: the same rank for every matrix,
        energy: or the least rank that keeps this share of each matrix's squared norm,
        size: or the ranks that lose least while the adapter's file stays within a number of bytes ("8MB"), one budget
            over all matrices.
        dtype: the type of the adapter's weights: float32, bfloat16 or float16.
        prefix: what the class that the adapter will be loaded onto puts before the base's names.
        progress: called with each matrix's name, its number, and their count.

    Returns:
        what the adapter keeps of each matrix, with its error.
    """
    target = Path(folder)
    _check_wish(rank, energy, size, dtype)
    budget = parse_size(size) if size is not None else None
    check_folder(target)
    matrices, unchanged = _decomposed(change, rank=rank, budget=budget, dtype=dtype, prefix=prefix, progress=progress)
    ranks, shortfall = _ranks(matrices, rank=rank, energy=energy, budget=budget)
    pairs, entries = [], []
    for position, matrix in enumerate(matrices):
        if progress is not None:
            progress(matrix.name, position, len(matrices))
        kept, found = ranks[matrix.module], matrix.found
        pair = rounded(found.left[:, :kept], found.values[:kept], found.right[:, :kept], matrix.module, dtype)
        norm, error = _measured(change, matrix.name, pair)
        entries.append(Extracted(matrix.module, rank=kept, error=error, norm=norm))
        pairs += [pair] if kept else []
    extraction = Extraction(
        target,
        matrices=tuple(entries),
        unchanged=tuple(unchanged),
        left_out=_left_out(change, set(linear_layers(change))),
        bytes=0,
        shortfall=shortfall / sum(matrix.found.energy for matrix in matrices),
    )
    adapted = {pair.module for pair in pairs}
    written = write_adapter(
        target,
        pairs,
        base=str(change.base),
        others=[module for module in (*(each.module for each in entries), *unchanged) if module not in adapted],
        input_first=any(change.input_first(name) for name in linear_layers(change)),
        record={key: value for key, value in extraction.record().items() if key not in ("folder", "bytes")},
    )
    assert budget is None or written <= budget
    return replace(extraction, bytes=written)


def linear_layers(change: Diff) -> list[str]:
    """The matrices that a LoRA can change: weights of linear layers, neither embeddings nor norms."""
    return [
        name
        for name in change.matrices
        if name.endswith(".weight") and change.matched.kinds[name] != "embed" and not _NOT_LINEAR.search(name)
    ]


def parse_size(size: int | str) -> int:
    """A number of bytes, as a number or as words.

    >>> parse_size("1.5MB"), parse_size("2 KiB"), parse_size(10)
    (1500000, 2048, 10)
    """
    match = _SIZE.fullmatch(str(size))
    if match is None:
        raise UserError(
            f"'{printable(size)}' is no size: write a number of bytes, or one with KB, MB, GB, KiB, MiB, GiB"
        )
    return int(float(match["number"]) * _UNITS[(match["unit"] or "B").lower()])


def _check_wish(rank: int | None, energy: float | None, size: int | str | None, dtype: torch.dtype) -> None:
    if sum(wish is not None for wish in (rank, energy, size)) != 1:
        raise UserError("say how large the adapter may be by one of three: a rank (16), an energy (0.95), bytes (8MB)")
    if rank is not None and rank < 1:
        raise UserError(f"the rank of an adapter must be 1 or more, got {rank}")
    if energy is not None and not 0 < energy <= 1:
        raise UserError(f"the energy to keep is a share above 0 and at most 1, got {energy}")
    if dtype not in DTYPES.values():
        raise UserError(f"an adapter's weights are {', '.join(DTYPES)}, not {dtype}")


def _decomposed(
    change: Diff,
    *,
    rank: int | None,
    budget: int | None,
    dtype: torch.dtype,
    prefix: str,
    progress: Progress | None,
) -> tuple[list[Matrix], list[str]]:
    """The leading triplets of every change, as many as may be kept; and the modules that did not change."""
    linear = linear_layers(change)
    matrices: list[Matrix] = []
    unchanged: list[str] = []
    for position, name in enumerate(linear):
        if progress is not None:
            progress(name, position, len(linear))
        product = change.change_of(name)
        module = prefix + change.base_name(name).removesuffix(".weight")
        moved = torch.linalg.vector_norm(product.left, dtype=torch.float64).item()
        if (reason := unranked(product, moved)) is not None:
            if not moved < float("inf"):
                raise UserError(f"'{printable(name)}': {reason}; no adapter can hold that, mend the checkpoint first")
            unchanged.append(module)
            continue
        product = product.T if change.input_first(name) else product
        shape = (product.shape[-2], product.shape[-1])
        found = project(product, triplets(shape, max(rank or 0, LOOKED_FOR)))
        unit = sum(shape) * dtype.itemsize
        most = min(
            len(found.values), rank or len(found.values), len(found.values) if budget is None else budget // unit
        )
        found = replace(found, left=found.left[:, :most].clone(), right=found.right[:, :most].clone())
        matrices.append(Matrix(name=name, module=module, found=found, unit=unit))
    if not matrices:
        raise UserError("no linear layer differs between the two checkpoints: there is nothing to extract")
    return matrices, unchanged


def _ranks(
    matrices: Sequence[Matrix], *, rank: int | None, energy: float | None, budget: int | None
) -> tuple[dict[str, int], float]:
    """The rank of each matrix, and the energy that others may keep beyond these at most."""
    if rank is not None:
        return {matrix.module: min(rank, len(matrix.found.values)) for matrix in matrices}, 0.0
    if energy is not None:
        found = {matrix.module: energy_rank(matrix.found, energy) for matrix in matrices}
        short = [module for module, needed in found.items() if needed is None]
        if short:
            raise UserError(
                f"'{printable(short[0])}' needs more than {LOOKED_FOR} ranks for {energy:.0%} of its change: a LoRA "
                "would hardly be smaller than the matrix; ask for less energy, or say a rank or a number of bytes"
            )
        return {module: needed or 0 for module, needed in found.items()}, 0.0
    assert budget is not None
    return _within(matrices, budget)


def _within(matrices: Sequence[Matrix], budget: int) -> tuple[dict[str, int], float]:
    """The best ranks for which the file, its header included, is not larger than the budget."""
    ranks = dict.fromkeys((matrix.module for matrix in matrices), 0)
    chosen = list(matrices)
    while True:
        room = budget - header_bytes([matrix.module for matrix in chosen], budget)
        energies = [matrix.found.values.double().square().tolist() for matrix in chosen]
        found = allocate(energies, [matrix.unit for matrix in chosen], max(room, 0))
        kept = [matrix for matrix, rank in zip(chosen, found.ranks, strict=True) if rank]
        # Matrices that get nothing need no header: what it takes goes to the others.
        if len(kept) == len(chosen):
            ranks |= {matrix.module: rank for matrix, rank in zip(chosen, found.ranks, strict=True)}
            return ranks, found.shortfall
        if not kept and len(chosen) == 1:
            least = chosen[0].unit + header_bytes([chosen[0].module], budget)
            raise UserError(f"{budget:,} bytes hold no rank of any matrix: give at least {least:,}")
        if not kept:
            # Their headers alone are too large: go on with those whose first triplet is worth most.
            worth = sorted(chosen, key=lambda matrix: -(matrix.found.values[0].item() ** 2) / matrix.unit)
            kept = worth[: len(worth) // 2]
        chosen = kept


def _measured(change: Diff, name: str, pair: Pair) -> tuple[float, float]:
    """The norm of a change, and of what is left of it without the update as it is stored, a slab of rows at a time."""
    after, before = change.tensor(name), change.matched.start[name]
    down, up = pair.a.double(), pair.b.double()
    update = (down.mT, up.mT) if change.input_first(name) else (up, down)
    whole = left = 0.0
    for rows in range(0, after.shape[0], SLAB):
        moved = after[rows : rows + SLAB].double() - before[rows : rows + SLAB].double()
        whole += moved.square().sum().item()
        left += (moved - update[0][rows : rows + SLAB] @ update[1]).square().sum().item()
    return whole**0.5, left**0.5


def _left_out(change: Diff, carried: Collection[str]) -> Mapping[str, float]:
    """The tensors that changed, or that the base lacks, and that the adapter cannot carry; norms of what it lacks."""
    found: dict[str, float] = {}
    start = change.matched.start
    for name in change.names:
        if name in carried:
            continue
        after = change.tensor(name)
        if not after.is_floating_point():
            continue
        moved = after.double() - start[name].double() if name in start.names else after.double()
        if (norm := torch.linalg.vector_norm(moved).item()) != 0:
            found[name] = norm
    return found
