"""Which files of a folder are its weights: what every tool that writes checkpoints leaves behind, told apart."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, replace

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints.folders import Folder, plain_name, read_json
from rankwise.sites.checkpoints.formats import PICKLE_SUFFIXES
from rankwise.text import printable

INDEX_SUFFIXES = (".safetensors.index.json", ".bin.index.json")
# What trainers save beside the weights.
NOT_WEIGHTS = re.compile(
    r"(training_args|optimizer|scheduler|scaler|rng_state|random_states|sampler|dataloader|trainer_state)[\w.-]*"
)
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.\w+)")
# Names that say "the whole model", the likeliest first.
USUAL_STEMS = (
    "adapter_model",
    "model",
    "pytorch_model",
    "diffusion_pytorch_model",
    "consolidated",
    "ckpt",
    "checkpoint",
)
USUAL_DIRECTORIES = ("model", "transformer", "0_Transformer")


@dataclass(frozen=True)
class Selection:
    """The weight files of one checkpoint, the shard of every tensor when an index states it, and what was decided."""

    files: tuple[str, ...]
    _: KW_ONLY
    shard_of: dict[str, str] | None = None
    index: str | None = None
    notes: tuple[str, ...] = ()


def select_file(folder: Folder, file: str) -> Selection:
    """The weights that a named file means: itself, or the shards that it indexes."""
    if file.endswith(".json"):
        return _indexed(folder, file)
    selection, shard = Selection((file,)), SHARD.fullmatch(file)
    if shard is None:
        return selection
    return _with_note(selection, f"one shard of {int(shard['count'])} was read: give the folder or the index for all")


def select_files(folder: Folder) -> tuple[Folder, Selection]:
    """The weights of a folder, and the folder inside it that holds them where that is obvious.

    Preferred in this order: an adapter, safetensors by an index, safetensors, PyTorch files by an index, PyTorch files.
    """
    files = folder.files() or []
    selection = _among(folder, files)
    if selection is not None:
        return folder, selection
    return _inside(folder, files)


def _among(folder: Folder, files: list[str]) -> Selection | None:
    weights = [name for name in files if not NOT_WEIGHTS.fullmatch(name)]
    safetensors = [name for name in weights if name.endswith(".safetensors")]
    pickles = [name for name in weights if name.endswith(PICKLE_SUFFIXES)]
    if "adapter_config.json" in files:
        adapters = [name for name in weights if name in ("adapter_model.safetensors", "adapter_model.bin")]
        if adapters:
            return Selection((adapters[-1],))
    for suffix, candidates in ((INDEX_SUFFIXES[0], safetensors), (INDEX_SUFFIXES[1], pickles)):
        indices = [name for name in weights if name.endswith(suffix)]
        if indices:
            chosen = _likeliest(indices)
            selection = _indexed(folder, chosen)
            return _noting(selection, [name for name in indices if name != chosen])
        if candidates:
            return _noting(_one_model(folder, candidates), pickles if candidates is safetensors else [])
    gguf = [name for name in weights if name.endswith(".gguf")]
    return Selection(tuple(gguf)) if gguf else None


def _one_model(folder: Folder, names: list[str]) -> Selection:
    """One file, or the shards of one model that lack an index; several models are for the user to choose from."""
    shards = {name: match for name in names if (match := SHARD.fullmatch(name))}
    whole = [name for name in names if name not in shards]
    usual = [stem for stem in USUAL_STEMS for name in whole if name.rpartition(".")[0] == stem]
    if usual:
        chosen = next(name for name in whole if name.rpartition(".")[0] == usual[0])
        return _noting(Selection((chosen,)), [name for name in names if name != chosen])
    if len(whole) == 1 and not shards:
        return Selection((whole[0],))
    families = {(match["stem"], match["count"], match["suffix"]) for match in shards.values()}
    if len(families) == 1 and not whole:
        count = int(next(iter(families))[1])
        found = {int(match["number"]) for match in shards.values()}
        missing = sorted(set(range(1, count + 1)) - found)
        if missing:
            raise CheckpointError(f"{folder.name} lacks shard {missing[0]} of {count}: fetch it again")
        return Selection(tuple(sorted(shards)), notes=(f"{count} shards without an index were read together",))
    listed = ", ".join(printable(name, 60) for name in names[:5]) + (", …" if len(names) > 5 else "")
    raise CheckpointError(f"{folder.name} holds {len(names)} weight files ({listed}): give the path of one of them")


def _inside(folder: Folder, files: list[str]) -> tuple[Folder, Selection]:
    """Look one level down, where nothing lies at the top."""
    directories = folder.directories()
    if any(name.endswith(".distcp") for name in files):
        raise CheckpointError(
            f"{folder.name} is a torch.distributed checkpoint: convert it with "
            "'python -m torch.distributed.checkpoint.format_utils dcp_to_torch'"
        )
    inner = [name for name in directories if not name.startswith(".") and _has_weights(folder.child(name))]
    if len(inner) > 1:
        inner = [name for name in USUAL_DIRECTORIES if name in inner and "model_index.json" not in files][:1] or inner
    if len(inner) == 1:
        child = folder.child(inner[0])
        selection = _among(child, child.files() or [])
        assert selection is not None
        return child, _with_note(selection, f"the weights are those in the directory '{printable(inner[0])}'")
    if inner:
        listed = ", ".join(printable(name, 60) for name in inner[:6]) + (", …" if len(inner) > 6 else "")
        numbered = all(re.search(r"\d", name) for name in inner)
        series = f", or '{folder.name}/*' in quotes for all as a series" if numbered else ""
        raise CheckpointError(f"{folder.name} holds several models ({listed}): give the path of one of them{series}")
    raise CheckpointError(
        f"{folder.name} holds no weights: expected a .safetensors, .bin, .pt, .pth or .ckpt file, or an index of shards"
    )


def _has_weights(folder: Folder) -> bool:
    suffixes = (".safetensors", *PICKLE_SUFFIXES, *INDEX_SUFFIXES)
    return any(name.endswith(suffixes) and not NOT_WEIGHTS.fullmatch(name) for name in folder.files() or [])


def _indexed(folder: Folder, index: str) -> Selection:
    """The shards that an index names, each checked to be a plain name inside the folder and to exist."""
    where = f"{folder.name}/{printable(index)}"
    content = read_json(folder, index)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{where} is not an index of shards: it has no weight_map")
    names = {name: plain_name(file, where) for name, file in weight_map.items()}
    shards = tuple(sorted(set(names.values())))
    listed = folder.files()
    if listed is not None:
        missing = [file for file in shards if "/" not in file and file not in listed]
        if missing:
            raise CheckpointError(
                f"{where} names {printable(missing[0])}, which does not exist ({len(missing)} of {len(shards)} shards "
                "are missing): fetch what is missing"
            )
    return Selection(shards, shard_of=names, index=where)


def _likeliest(indices: list[str]) -> str:
    return min(indices, key=lambda name: next((at for at, stem in enumerate(USUAL_STEMS) if name.startswith(stem)), 99))


def _noting(selection: Selection, others: list[str]) -> Selection:
    if not others:
        return selection
    listed = ", ".join(printable(name, 60) for name in others[:5]) + (", …" if len(others) > 5 else "")
    return _with_note(selection, f"left aside, as other copies or parts: {listed}")


def _with_note(selection: Selection, note: str) -> Selection:
    return replace(selection, notes=(*selection.notes, note))
