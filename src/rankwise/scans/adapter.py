"""A LoRA adapter on disk as PEFT reads it: its weights, its configuration, and the size that they will have."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from rankwise.errors import UserError
from rankwise.files import usual_mode
from rankwise.text import printable

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
# What a safetensors header holds beside its entries: its length, its padding, its metadata and its braces.
FRAME_BYTES = 64


@dataclass(frozen=True)
class Pair:
    """The two factors of one layer's update, `B A`, in the adapter's type."""

    module: str
    _: KW_ONLY
    a: Tensor
    b: Tensor

    @property
    def rank(self) -> int:
        return self.a.shape[0]


def check_folder(folder: Path) -> None:
    """Say before the work what would keep an adapter from being written into a folder, which must be new or empty."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{printable(folder)} exists already: name a new folder for the adapter")
        shutil.rmtree(_scratch(folder))
    except OSError as error:
        raise UserError(f"cannot write to {printable(folder)}: {error.strerror}") from None


def header_bytes(modules: Collection[str], largest: int) -> int:
    """A bound on what the weights' file needs beyond the weights, when no size or position in it exceeds `largest`."""
    digits = len(str(largest))
    entries = (f'"{_key(module, "A")}":{{"dtype":"BF16","shape":[,],"data_offsets":[,]}},' for module in modules)
    return FRAME_BYTES + sum(2 * (len(entry.encode()) + 4 * digits) for entry in entries)


def write_adapter(
    folder: Path,
    pairs: Sequence[Pair],
    *,
    base: str,
    others: Collection[str],
    input_first: bool,
    record: Mapping[str, Any],
) -> int:
    """Write an adapter, whole or not at all, and return the bytes of its weights' file.

    Arguments:
        folder: where, new or empty.
        pairs: its layers.
        base: what it was extracted from, for PEFT to find the model by.
        others: linear layers of the model that it leaves alone.
        input_first: whether the layers keep their weights input first, as GPT-2's do.
        record: what is known of its errors, kept beside it.
    """
    tensors = {}
    for pair in pairs:
        tensors |= {_key(pair.module, "A"): pair.a.contiguous(), _key(pair.module, "B"): pair.b.contiguous()}
    config = _config(pairs, base=base, others=others, input_first=input_first)
    try:
        scratch = _scratch(folder)
        try:
            save_file(tensors, scratch / WEIGHTS, metadata={"format": "pt"})
            size = (scratch / WEIGHTS).stat().st_size
            (scratch / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            content = json.dumps({"bytes": size, **record}, indent=2)
            (scratch / "rankwise.json").write_text(content + "\n", encoding="utf-8")
            for file in scratch.iterdir():
                file.chmod(usual_mode())
            scratch.chmod(usual_mode(0o777))
            if folder.exists():
                folder.rmdir()
            os.replace(scratch, folder)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    except OSError as error:
        raise UserError(f"cannot write to {printable(folder)}: {error.strerror}") from None
    return size


def _config(pairs: Sequence[Pair], *, base: str, others: Collection[str], input_first: bool) -> dict[str, Any]:
    ranks = {pair.module: pair.rank for pair in sorted(pairs, key=lambda pair: (-len(pair.module), pair.module))}
    common = max(ranks.values())
    # PEFT takes the first pattern that a module's name ends in: every module has its own, and the longest come first.
    pattern = ranks if len(set(ranks.values())) > 1 else {}
    name, _, revision = base.removeprefix("hf://").partition("@")
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": name,
        "revision": revision or None,
        "r": common,
        "lora_alpha": common,
        "rank_pattern": pattern,
        "alpha_pattern": pattern,
        "target_modules": sorted(ranks),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": input_first,
        "inference_mode": True,
    }
    # A name among the targets also means every module whose path ends in it.
    excluded = sorted(each for each in others if any(each.endswith(f".{module}") for module in ranks))
    return config | ({"exclude_modules": excluded} if excluded else {})


def _key(module: str, factor: str) -> str:
    return f"base_model.model.{module}.lora_{factor}.weight"


def _scratch(folder: Path) -> Path:
    """A folder beside the one that is wanted, so that moving it there is one step."""
    place = Path(os.path.abspath(folder))
    place.parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name[:40]}."))


def rounded(left: Tensor, values: Tensor, right: Tensor, module: str, dtype: torch.dtype) -> Pair:
    """Balanced factors `A = sqrt(S) V^T` and `B = U sqrt(S)`, as decay would have them, in the adapter's type."""
    root = values.sqrt()
    return Pair(module, a=(right * root).mT.to(dtype), b=(left * root).to(dtype))
