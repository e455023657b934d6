"""Which format a file really has, by its first bytes; its suffix may lie."""

from __future__ import annotations

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints.pickles import pickle_file
from rankwise.sites.checkpoints.ranges import ByteRanges, read_bytes
from rankwise.sites.checkpoints.stored import WeightFile, safetensors_file

LONGEST_MAGIC = 64
GIT_LFS = b"version https://git-lfs"
# Formats that are told apart so that their name can be said, with what to do about them.
FOREIGN_FORMATS: tuple[tuple[bytes, str], ...] = (
    (b"\x89HDF\r\n\x1a\n", "an HDF5 (Keras) file: save the weights as safetensors"),
    (b"\x08\x08\x12", "an ONNX file: export the weights as safetensors"),
    (b"\x93NUMPY", "a NumPy array: save named tensors as safetensors"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"\xfd7zXZ", "an xz archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive: unpack it first"),
    (b"<!DOCTYPE", "a web page, not weights: the download went wrong"),
    (b"<html", "a web page, not weights: the download went wrong"),
)
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".th")


def open_weights(source: ByteRanges, name: str) -> WeightFile:
    """Open one weight file by what it is: safetensors, a PyTorch file, or one line that says what it is instead."""
    if source.size == 0:
        raise CheckpointError(f"{source.name} is empty")
    magic = bytes(read_bytes(source, 0, min(LONGEST_MAGIC, source.size)))
    if magic.startswith(GIT_LFS):
        raise CheckpointError(
            f"{source.name} is a Git LFS pointer, not the weights themselves: fetch them with 'git lfs pull'"
        )
    if magic.startswith(b"GGUF"):
        reason = "a GGUF file (llama.cpp): quantized formats of GGUF are not read"
        return WeightFile(name, tensors={}, close=source.close, unreadable={name: reason})
    for start, description in FOREIGN_FORMATS:
        if magic.startswith(start):
            raise CheckpointError(f"{source.name} is {description}")
    pickled = magic.startswith((b"PK", b"\x80")) or name.endswith(PICKLE_SUFFIXES)
    # The length of a safetensors header may begin with these bytes, but then its JSON follows.
    if pickled and magic[8:9] != b"{":
        return pickle_file(source, name)
    return safetensors_file(source, name)
