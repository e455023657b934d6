"""A checkpoint: names to tensors, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import Tensor

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints.directory import Selection
from rankwise.sites.checkpoints.prefixes import unwrapped
from rankwise.sites.checkpoints.quantized import unquantize
from rankwise.sites.checkpoints.region import Index
from rankwise.sites.checkpoints.stored import Entry, StoredTensor, WeightFile
from rankwise.text import printable


class UnknownTensor(CheckpointError, KeyError):
    """A name that the checkpoint cannot give a tensor for."""

    def __str__(self) -> str:
        # KeyError would show the repr of the text.
        return Exception.__str__(self)


class Checkpoint(Mapping[str, Tensor]):
    """A mapping of names to tensors that lie on disk, on a server or on the Hub; reads only what is asked for.

    **Attributes:**

    - `entries`: what can be read, in the order of the data on disk.
    - `unreadable`: names of what cannot, each with its reason.
    - `config`, `adapter`: the model's and the adapter's configuration, None where there is none.
    - `notes`: what was decided on the way: which files, which prefixes, what was dequantized.
    - `stamps`: for each file what tells its state from another.
    """

    def __init__(
        self,
        source: str,
        files: Sequence[WeightFile],
        *,
        selection: Selection,
        config: dict[str, Any] | None = None,
        adapter: dict[str, Any] | None = None,
    ) -> None:
        self.source = source
        self.adapter = adapter
        self.config = config if config is not None else next((file.config for file in files if file.config), None)
        self.notes: list[str] = [*selection.notes, *(note for file in files for note in file.notes)]
        self.stamps: Mapping[str, str] = MappingProxyType({file.name: file.stamp for file in files})
        self._files = files
        self._closed = False
        stored, unreadable = _joined(files, selection, self.notes)
        renamed, notes = unwrapped([*stored, *(name for name in unreadable if name not in stored)])
        self.notes += notes
        plain = unquantize({renamed[name]: tensor for name, tensor in stored.items()}, self.config)
        self.notes += plain.notes
        self._tensors = plain.tensors
        self.entries: Mapping[str, Entry] = MappingProxyType(
            {name: tensor.entry(name) for name, tensor in plain.tensors.items()}
        )
        self.unreadable: Mapping[str, str] = MappingProxyType(
            {renamed[name]: reason for name, reason in unreadable.items()} | plain.unreadable
        )

    @property
    def total_bytes(self) -> int:
        """Bytes that the readable tensors take where they are stored."""
        return sum(entry.bytes for entry in self.entries.values())

    def read(self, name: str, index: Index | None = None) -> Tensor:
        """The tensor of this name, or `tensor[index]`, in memory of its own.

        **Arguments:** `index` is a tuple of slices and integers; of a block of rows only those rows are read.
        """
        if self._closed:
            raise CheckpointError(f"{self.source} was closed: open it again to read '{printable(name)}'")
        tensor = self._tensors.get(name)
        if tensor is None:
            reason = self.unreadable.get(name, "it holds no tensor of this name")
            raise UnknownTensor(f"{self.source} cannot give '{printable(name)}': {reason}")
        return tensor.read(index)

    def close(self) -> None:
        """Close its files; entries and notes stay, reading does not."""
        self._closed = True
        for file in self._files:
            file.close()

    def __getitem__(self, name: str) -> Tensor:
        return self.read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __eq__(self, other: object) -> bool:
        # Mapping would compare by reading every tensor of both.
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        gigabytes = self.total_bytes / 1e9
        return (
            f"Checkpoint({self.source!r}: {len(self)} tensors, {gigabytes:.3g} GB, {len(self.unreadable)} unreadable)"
        )


def _joined(
    files: Sequence[WeightFile], selection: Selection, notes: list[str]
) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors of all files under their stored names, as the index assigns them where there is one."""
    shard_of = selection.shard_of or {}
    stored: dict[str, StoredTensor] = {}
    unreadable: dict[str, str] = {}
    for file in files:
        for name, tensor in file.tensors.items():
            if shard_of.get(name, file.name) != file.name:
                continue
            if name in stored:
                raise CheckpointError(
                    f"'{printable(name)}' is in {printable(stored[name].file)} and in {printable(file.name)}: they "
                    "are not shards of one model; give the path of one of them"
                )
            stored[name] = tensor
        unreadable |= file.unreadable
    absent = [name for name in shard_of if name not in stored and name not in unreadable]
    if absent:
        raise CheckpointError(
            f"{selection.index} places '{printable(absent[0])}' in {printable(shard_of[absent[0]])}, "
            "which does not hold it"
        )
    if shard_of and (extra := [name for name in stored if name not in shard_of]):
        notes.append(f"{len(extra)} tensors that the index does not name were found in its shards and kept")
    return stored, unreadable
