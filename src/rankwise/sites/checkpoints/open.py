"""The door: whatever a user calls a checkpoint, opened."""

from __future__ import annotations

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints.checkpoint import Checkpoint
from rankwise.sites.checkpoints.directory import select_file, select_files
from rankwise.sites.checkpoints.folders import Folder, LocalFolder, read_json_beside
from rankwise.sites.checkpoints.formats import open_weights
from rankwise.sites.checkpoints.http import HttpFile, HttpFolder, without_query
from rankwise.sites.checkpoints.hub import PREFIX, hub_location
from rankwise.sites.checkpoints.stored import WeightFile
from rankwise.text import printable

# Headers of remote shards are fetched side by side: a model of 160 shards would wait for 160 round trips.
SHARDS_AT_ONCE = 8


def open_checkpoint(source: str | Path, *, revision: str | None = None) -> Checkpoint:
    """Open a checkpoint, reading nothing but its headers.

    **Arguments:**

    - `source`: a safetensors file, an index of shards, a PyTorch file (`.bin`, `.pt`, `.pth`, `.ckpt`, `.th`; opened
      with `weights_only`), a directory of these or of a PEFT adapter, the URL of such a file on a server that honours
      `Range`, or `hf://org/name[@revision][/path]`.
    - `revision`: branch, tag or commit, for `hf://` alone.

    **Returns:** a `Checkpoint`; anything that cannot be read raises `CheckpointError`, in one line.
    """
    folder, file = _location(source, revision)
    if file is None:
        folder, selection = select_files(folder)
    else:
        selection = select_file(folder, file)
    with ExitStack() as unless_done:
        files = _opened(folder, selection.files, unless_done)
        config, config_notes = read_json_beside(folder, "config.json")
        adapter, adapter_notes = read_json_beside(folder, "adapter_config.json")
        checkpoint = Checkpoint(
            printable(without_query(str(source)) if isinstance(folder, HttpFolder) else source),
            files,
            selection=replace(selection, notes=(*selection.notes, *config_notes, *adapter_notes)),
            config=config,
            adapter=adapter,
        )
        unless_done.pop_all()
    return checkpoint


def _location(source: str | Path, revision: str | None) -> tuple[Folder, str | None]:
    """The folder that a source means, and the file in it when it means a file."""
    text = str(source)
    if text.startswith(PREFIX):
        return hub_location(text, revision)
    if revision is not None:
        warnings.warn(
            f"revision='{printable(revision)}' has no effect: {printable(text)} is not on the Hub", stacklevel=3
        )
    if text.startswith(("http://", "https://")):
        place = HttpFile(text)
        return place, place.file
    if not text or "\0" in text:
        raise CheckpointError("the path of a checkpoint is empty or holds a NUL character")
    path = Path(os.path.expanduser(source))
    try:
        if path.is_dir():
            return LocalFolder(path), None
    except OSError as error:
        raise CheckpointError(f"{printable(path)} cannot be opened: {error.strerror}") from error
    return LocalFolder(path.parent), path.name


def _opened(folder: Folder, names: tuple[str, ...], unless_done: ExitStack) -> list[WeightFile]:
    def opened(name: str) -> WeightFile:
        source = folder.open(name)
        unless_done.callback(source.close)
        return replace(open_weights(source, name), stamp=source.stamp)

    with ThreadPoolExecutor(SHARDS_AT_ONCE) as pool:
        return list(pool.map(opened, names))
