"""The door: whatever a user calls a checkpoint, opened."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints.checkpoint import Checkpoint
from rankwise.sites.checkpoints.directory import select_file, select_files
from rankwise.sites.checkpoints.folders import Folder, LocalFolder, read_optional_json
from rankwise.sites.checkpoints.formats import open_weights
from rankwise.sites.checkpoints.http import HttpFile
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
        checkpoint = Checkpoint(
            printable(source),
            files,
            selection=selection,
            config=read_optional_json(folder, "config.json"),
            adapter=read_optional_json(folder, "adapter_config.json"),
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
    path = Path(source).expanduser()
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
        return open_weights(source, name)

    with ThreadPoolExecutor(SHARDS_AT_ONCE) as pool:
        return list(pool.map(opened, names))
