"""From the change of single matrices to a LoRA adapter: ranks from one budget, factors from the leading triplets."""

from __future__ import annotations

import heapq
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.text import Text
from safetensors.torch import save_file
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.randomized import Projected, project
from rankwise.scans.difference import LOOKED_FOR, WHOLE, Diff, energy_rank
from rankwise.scans.table import cells
from rankwise.text import printable

# What no LoRA of linear layers carries.
_NOT_LINEAR = re.compile(r"(embed|wte|wpe|lm_head|position_embeddings|token_type_embeddings|norm)", re.IGNORECASE)
_SIZE = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMG]i?B|B)?\s*", re.IGNORECASE)
_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


@dataclass(frozen=True)
class Extracted:
    """One matrix of an adapter.

    Arguments:
        module: the linear layer it adapts.
        rank: how many triplets it keeps.
        error: the Frobenius norm of what they leave out.
        norm: the Frobenius norm of the change.
    """

    module: str
    rank: int = field(kw_only=True)
    error: float = field(kw_only=True)
    norm: float = field(kw_only=True)


@dataclass(frozen=True)
class Extraction:
    """An adapter on disk: what it keeps of each matrix, and what it cannot carry.

    Arguments:
        folder: where it was written.
        matrices: one entry for each matrix of the change, those of rank 0 included.
        left_out: tensors that changed and that no LoRA carries (biases, norms, embeddings, new heads), with the norm of
            their change.
        bytes: the size of its weights.
    """

    folder: Path
    matrices: tuple[Extracted, ...] = field(kw_only=True)
    left_out: Mapping[str, float] = field(kw_only=True)
    bytes: int = field(kw_only=True)

    @property
    def relative_error(self) -> float:
        """The error over the norm of the change, all matrices together."""
        missed = sum(each.error**2 for each in self.matrices)
        total = sum(each.norm**2 for each in self.matrices)
        return (missed / total) ** 0.5 if total else 0.0

    def record(self) -> dict[str, Any]:
        """The extraction as JSON."""
        matrices = [
            {"module": each.module, "rank": each.rank, "error": each.error, "norm": each.norm} for each in self.matrices
        ]
        return {
            "folder": str(self.folder),
            "bytes": self.bytes,
            "relative_error": self.relative_error,
            "matrices": matrices,
            "left_out": dict(self.left_out),
        }

    def __rich__(self) -> RenderableType:
        columns = (
            ("matrix", lambda each: printable(each.module)),
            ("rank", lambda each: str(each.rank)),
            ("norm of the change", lambda each: f"{each.norm:.4g}"),
            ("error", lambda each: f"{each.error:.3g}"),
            ("share missed", lambda each: f"{each.error / each.norm:.1%}" if each.norm else "-"),
        )
        title = f"{self.bytes:,} bytes; {self.relative_error:.1%} of the change of these matrices is missed"
        return Group(cells(title, self.matrices, columns, len(self.matrices)), *self._warnings())

    def _warnings(self) -> Iterator[Text]:
        if self.left_out:
            largest = max(self.left_out, key=self.left_out.__getitem__)
            yield Text(
                f"Left out: {len(self.left_out)} tensors changed that a LoRA of linear layers cannot carry (biases, "
                f"norms, embeddings), most of all {printable(largest)}, by {self.left_out[largest]:.3g}."
            )


@dataclass(frozen=True)
class Matrix:
    """The decomposed change of a linear layer, input side to the right."""

    module: str
    found: Projected
    itemsize: int

    @property
    def unit(self) -> int:
        """Bytes that one more rank costs."""
        return (self.found.left.shape[0] + self.found.right.shape[0]) * self.itemsize


def extract_lora(
    change: Diff,
    folder: str | Path,
    *,
    rank: int | None = None,
    energy: float | None = None,
    size: int | str | None = None,
    dtype: torch.dtype = torch.float32,
    progress: Callable[[str, int, int], None] | None = None,
) -> Extraction:
    """Write the change of a fine-tune as a PEFT adapter.

    Arguments:
        change: what `rw.diff` found.
        folder: where the adapter goes; it must not exist yet, or be empty.
        rank: the same rank for every matrix,
        energy: or the least rank that keeps this share of each matrix's squared norm,
        size: or the ranks that lose least within a number of bytes ("8MB"), one budget over all matrices.
        dtype: the type of the adapter's weights.
        progress: called with each matrix's name, its number, and their count.

    Returns:
        what the adapter keeps of each matrix, with its error.
    """
    target = _fresh(Path(folder))
    if sum(wish is not None for wish in (rank, energy, size)) != 1:
        raise UserError("say how large the adapter may be: one of rank=16, energy=0.95 or bytes='8MB'")
    if rank is not None and rank < 1:
        raise UserError(f"the rank of an adapter must be 1 or more, got {rank}")
    if energy is not None and not 0 < energy <= 1:
        raise UserError(f"the energy to keep is a share between 0 and 1, got {energy}")
    budget = parse_size(size) if size is not None else None
    shapes = change.matrices()
    linear = [name for name in shapes if name.endswith(".weight") and not _NOT_LINEAR.search(name)]
    itemsize = torch.empty(0, dtype=dtype).element_size()
    matrices: list[Matrix] = []
    still: list[str] = []
    for position, name in enumerate(linear):
        if progress is not None:
            progress(name, position, len(linear))
        product = change.change_of(name)
        if not product.left.isfinite().all():
            raise UserError(f"the change of '{printable(name)}' is not finite: mend the checkpoint first")
        if product.left.abs().max() == 0:
            still.append(name)
            continue
        if change.input_first(name):
            product = product.T
        count = min(shapes[name]) if min(shapes[name]) <= WHOLE else max(rank or 0, LOOKED_FOR)
        matrices.append(
            Matrix(
                change.base_name(name).removesuffix(".weight"), project(product, min(count, *shapes[name])), itemsize
            )
        )
    if not matrices:
        raise UserError("no linear layer differs between the two checkpoints: there is nothing to extract")
    ranks = _ranks(matrices, rank=rank, energy=energy, budget=budget)
    left_out = _left_out(change, set(linear))
    kept = [(matrix, ranks[matrix.module]) for matrix in matrices if ranks[matrix.module] > 0]
    _write(target, kept, dtype=dtype, base=change.base, input_first=any(change.input_first(name) for name in linear))
    return Extraction(
        target,
        matrices=tuple(
            Extracted(
                matrix.module,
                rank=ranks[matrix.module],
                error=matrix.found.missed(ranks[matrix.module]),
                norm=matrix.found.energy**0.5,
            )
            for matrix in matrices
        ),
        left_out=left_out,
        bytes=sum(matrix.unit * count for matrix, count in kept),
    )


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


def allocate(matrices: Sequence[Matrix], budget: int) -> dict[str, int]:
    """The ranks that lose least within a number of bytes: the triplets of most energy for each byte come first.

    A rank of one matrix costs the same number of bytes each time while the energy falls, so that taking the best ratio
    first is optimal up to the last triplet that no longer fits.
    """
    energies = {matrix.module: matrix.found.values.double().square().tolist() for matrix in matrices}
    units = {matrix.module: matrix.unit for matrix in matrices}
    ranks = dict.fromkeys(units, 0)
    queue = [(-energies[module][0] / unit, module) for module, unit in units.items()]
    heapq.heapify(queue)
    while queue:
        _, module = heapq.heappop(queue)
        if units[module] > budget:
            continue
        budget -= units[module]
        ranks[module] += 1
        if ranks[module] < len(energies[module]):
            heapq.heappush(queue, (-energies[module][ranks[module]] / units[module], module))
    return ranks


def _ranks(matrices: Sequence[Matrix], *, rank: int | None, energy: float | None, budget: int | None) -> dict[str, int]:
    if rank is not None:
        return {matrix.module: min(rank, len(matrix.found.values)) for matrix in matrices}
    if energy is not None:
        found = {matrix.module: energy_rank(matrix.found, energy) for matrix in matrices}
        short = [module for module, needed in found.items() if needed is None]
        if short:
            raise UserError(
                f"'{printable(short[0])}' needs more than {LOOKED_FOR} ranks for {energy:.0%} of its change: a LoRA "
                "would be no smaller than the matrix; ask for less energy, or give rank= or bytes="
            )
        return {module: needed or 0 for module, needed in found.items()}
    assert budget is not None
    ranks = allocate(matrices, budget)
    if not any(ranks.values()):
        least = min(matrix.unit for matrix in matrices)
        raise UserError(f"{budget} bytes hold no rank of any matrix: the smallest takes {least}")
    return ranks


def _left_out(change: Diff, linear: set[str]) -> dict[str, float]:
    """The tensors that changed and that the adapter cannot carry."""
    found = {}
    for name in change.start:
        if name in linear:
            continue
        after, before = change.tensor(name), change.start[name]
        if after.is_floating_point() and after.shape == before.shape:
            moved = torch.linalg.vector_norm(after.double() - before.double()).item()
            if moved > 0:
                found[name] = moved
    return found


def _write(
    target: Path, kept: Sequence[tuple[Matrix, int]], *, dtype: torch.dtype, base: str, input_first: bool
) -> None:
    tensors: dict[str, Tensor] = {}
    for matrix, rank in kept:
        # Both factors get the root of the singular values: balanced, as decay would have them.
        root = matrix.found.values[:rank].sqrt()
        prefix = f"base_model.model.{matrix.module}"
        tensors[f"{prefix}.lora_A.weight"] = (matrix.found.right[:, :rank] * root).mT.to(dtype).contiguous()
        tensors[f"{prefix}.lora_B.weight"] = (matrix.found.left[:, :rank] * root).to(dtype).contiguous()
    ranks = {matrix.module: rank for matrix, rank in kept}
    common = max(ranks.values())
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": common,
        "lora_alpha": common,
        "rank_pattern": {module: rank for module, rank in ranks.items() if rank != common},
        "alpha_pattern": {module: rank for module, rank in ranks.items() if rank != common},
        "target_modules": sorted(ranks),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": input_first,
        "inference_mode": True,
        "task_type": None,
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    # Written beside its place and moved there whole, so that an interrupted extraction leaves nothing behind.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".adapter-") as fresh:
        save_file(tensors, Path(fresh) / "adapter_model.safetensors", metadata={"format": "pt"})
        (Path(fresh) / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        target.mkdir(exist_ok=True)
        for file in Path(fresh).iterdir():
            file.replace(target / file.name)


def _fresh(folder: Path) -> Path:
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{printable(folder)} exists already: name a new folder for the adapter")
    except OSError as error:
        raise UserError(f"cannot write to {printable(folder)}: {error.strerror}") from None
    return folder
