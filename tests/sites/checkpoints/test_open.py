"""Whatever a user calls a checkpoint opens, with the values the libraries themselves read; or one line says why not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints import Entry, open_checkpoint

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.complex64,
]


def drawn(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    values = torch.randint(0, 2 if dtype == torch.bool else 90, shape)
    return values.to(dtype)


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Equal bit for bit, which `torch.equal` cannot say of every dtype."""
    return one.dtype == two.dtype and one.shape == two.shape and _bytes(one) == _bytes(two)


def _bytes(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().flatten().view(torch.uint8).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_whole_and_in_part(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = {"w": drawn(dtype, 6, 5, 4), "empty": drawn(dtype, 0, 3), "scalar": drawn(dtype)}
    save_file(weights, tmp_path / "model.safetensors")
    torch.save(weights, tmp_path / "model.pt")
    for name in ("model.safetensors", "model.pt"):
        with open_checkpoint(tmp_path / name) as checkpoint:
            written = str(dtype).removeprefix("torch.")
            size = 120 * dtype.itemsize
            assert checkpoint.entries["w"] == Entry("w", shape=(6, 5, 4), dtype=written, file=name, bytes=size)
            for key, value in weights.items():
                assert same(checkpoint[key], value)
            assert same(checkpoint.read("w", (slice(2, 5), 1)), weights["w"][2:5, 1])


def test_it_is_a_mapping_that_reads_when_asked(tmp_path: Path) -> None:
    weights = {"a": torch.randn(3, 4), "b": torch.randn(2)}
    save_file(weights, tmp_path / "m.safetensors")
    with open_checkpoint(str(tmp_path / "m.safetensors")) as checkpoint:
        assert len(checkpoint) == 2
        assert sorted(checkpoint) == ["a", "b"]
        assert "a" in checkpoint
        assert "c" not in checkpoint
        assert checkpoint.get("c") is None
        assert checkpoint.total_bytes == 14 * 4
        assert checkpoint != dict(checkpoint)
        with pytest.raises(CheckpointError, match=r"cannot give 'c\?': it holds no tensor of this name$"):
            checkpoint.read("c\x00")
    with pytest.raises(CheckpointError, match="was closed"):
        checkpoint.read("a")


def test_what_is_read_is_the_readers_own(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3)}, tmp_path / "m.safetensors")
    torch.save({"a": torch.ones(3)}, tmp_path / "m.pt")
    for name in ("m.safetensors", "m.pt"):
        with open_checkpoint(tmp_path / name) as checkpoint:
            checkpoint["a"].zero_()
            assert torch.equal(checkpoint["a"], torch.ones(3))


def test_a_real_directory_equals_the_safetensors_library(minilm_directory: Path) -> None:
    reference = load_file(minilm_directory / "model.safetensors")
    with open_checkpoint(minilm_directory) as checkpoint:
        assert checkpoint.config is not None
        assert checkpoint.config["model_type"] == "bert"
        assert set(checkpoint) == set(reference)
        assert all(torch.equal(checkpoint[name], reference[name]) for name in reference)
        assert not checkpoint.unreadable


def test_real_pickles_equal_torch(rxnfp_directories: dict[str, Path]) -> None:
    for directory in rxnfp_directories.values():
        reference = torch.load(directory / "pytorch_model.bin", map_location="cpu", weights_only=True)
        with open_checkpoint(directory) as checkpoint:
            assert set(checkpoint) == set(reference)
            assert all(torch.equal(checkpoint[name], reference[name]) for name in reference)


def test_training_arguments_beside_real_weights_are_refused(rxnfp_directories: dict[str, Path]) -> None:
    with pytest.raises(CheckpointError, match=r"pickle with code in it \(it asks for argparse.Namespace\): refused"):
        open_checkpoint(rxnfp_directories["ft_10k"] / "training_args.bin")


def _sharded(folder: Path) -> dict[str, torch.Tensor]:
    weights = {f"layers.{at}.w": torch.randn(4, 3) for at in range(4)}
    for at, name in enumerate(weights):
        save_file({name: weights[name]}, folder / f"model-{at + 1:05d}-of-00004.safetensors")
    mapping = {name: f"model-{at + 1:05d}-of-00004.safetensors" for at, name in enumerate(weights)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": mapping}))
    return weights


def test_shards_by_index_by_directory_and_without_an_index(tmp_path: Path) -> None:
    weights = _sharded(tmp_path)
    for source in (tmp_path, tmp_path / "model.safetensors.index.json"):
        with open_checkpoint(source) as checkpoint:
            assert all(torch.equal(checkpoint[name], weights[name]) for name in weights)
            assert checkpoint.entries["layers.2.w"].file == "model-00003-of-00004.safetensors"
    (tmp_path / "model.safetensors.index.json").unlink()
    with open_checkpoint(tmp_path) as checkpoint:
        assert set(checkpoint) == set(weights)
        assert any("without an index" in note for note in checkpoint.notes)
    (tmp_path / "model-00002-of-00004.safetensors").unlink()
    with pytest.raises(CheckpointError, match="lacks shard 2 of 4"):
        open_checkpoint(tmp_path)


def test_one_shard_alone_says_that_it_is_one(tmp_path: Path) -> None:
    _sharded(tmp_path)
    with open_checkpoint(tmp_path / "model-00002-of-00004.safetensors") as checkpoint:
        assert list(checkpoint) == ["layers.1.w"]
        assert checkpoint.notes == ["one shard of 4 was read: give the folder or the index for all"]


def test_a_shard_that_the_index_does_not_name_in_full(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2), "b": torch.ones(3)}, tmp_path / "x.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x.safetensors"}}))
    with open_checkpoint(tmp_path) as checkpoint:
        assert set(checkpoint) == {"a", "b"}
        assert any(note.startswith("1 tensors that the index does not name") for note in checkpoint.notes)


def test_missing_and_truncated_shards(tmp_path: Path) -> None:
    _sharded(tmp_path)
    shard = tmp_path / "model-00003-of-00004.safetensors"
    shard.write_bytes(shard.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match=r"model-00003-of-00004\.safetensors is not .*truncated"):
        open_checkpoint(tmp_path)
    shard.unlink()
    with pytest.raises(
        CheckpointError, match=r"names model-00003.*, which does not exist \(1 of 4 shards are missing\)"
    ):
        open_checkpoint(tmp_path)


def _index(weight_map: object) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        save_file({"a": torch.ones(2)}, folder / "a.safetensors")
        (folder / "x.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return folder / "x.safetensors.index.json"

    return make


def _content(content: bytes, name: str = "m.safetensors") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def _pipe(folder: Path) -> Path:
    os.mkfifo(folder / "m.safetensors")
    return folder / "m.safetensors"


def _loop(folder: Path) -> Path:
    (folder / "m.safetensors").symlink_to("m.safetensors")
    return folder / "m.safetensors"


def _folder_as_shard(folder: Path) -> Path:
    (folder / "b").mkdir()
    return _index({"b": "b"})(folder)


def _twice(folder: Path) -> Path:
    for at in (1, 2):
        save_file({"a": torch.ones(2)}, folder / f"model-0000{at}-of-00002.safetensors")
    return folder


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n"
BAD_SOURCES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda folder: folder / "absent.safetensors", "does not exist"),
    "missing folder": (lambda folder: folder / "no" / "absent.safetensors", "does not exist"),
    "nothing in it": (lambda folder: folder, "holds no weights: expected"),
    "device": (lambda folder: Path("/dev/null"), "is a device, not a regular file"),
    "pipe": (_pipe, "is a pipe, not a regular file"),
    "loop of links": (_loop, "symbolic links"),
    "NUL": (lambda folder: folder / "a\0b", "NUL"),
    "name too long": (lambda folder: folder / ("a" * 5000), "too long"),
    "empty": (_content(b""), "is empty"),
    "Git LFS": (_content(POINTER), "is a Git LFS pointer"),
    "Git LFS pickle": (_content(POINTER, "pytorch_model.bin"), "is a Git LFS pointer"),
    "web page": (_content(b"<!DOCTYPE html><html>"), "is a web page"),
    "HDF5": (_content(b"\x89HDF\r\n\x1a\n" + bytes(99), "model.h5"), "is an HDF5"),
    "text": (_content(b"hello " * 40), "is not a usable safetensors file"),
    "traversal": (_index({"a": "../../etc/passwd"}), r"names the file '../../etc/passwd', .*: refused"),
    "absolute": (_index({"a": "/etc/passwd"}), "refused"),
    "backslash": (_index({"a": "..\\x"}), "refused"),
    "no file name": (_index({"a": 3}), "refused"),
    "index of nothing": (_index({}), "no weight_map"),
    "index is a list": (_index([]), "no weight_map"),
    "shard missing": (
        _index({"a": "a.safetensors", "b": "b.safetensors"}),
        "names b.safetensors, which does not",
    ),
    "tensor missing": (
        _index({"a": "a.safetensors", "b": "a.safetensors"}),
        "places 'b' in a.safetensors, which",
    ),
    "folder as a shard": (_folder_as_shard, "which does not exist"),
    "index no JSON": (_content(b"{", "m.safetensors.index.json"), "not valid JSON"),
    "index no object": (_content(b"[]", "m.safetensors.index.json"), "holds a JSON list"),
    "the same tensor in two shards": (_twice, "'a' is in model-00001.* and in model-00002"),
}


@pytest.mark.parametrize(("make", "words"), BAD_SOURCES.values(), ids=BAD_SOURCES.keys())
def test_bad_sources_get_one_line(tmp_path: Path, make: Callable[[Path], Path], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        open_checkpoint(make(tmp_path))
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "m.safetensors")
    (tmp_path / "m.safetensors").chmod(0)
    if os.access(tmp_path / "m.safetensors", os.R_OK):
        # The superuser may read everything, so the refusal is the system call's own.
        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("rankwise.sites.checkpoints.ranges.open", refuse, raising=False)
    with pytest.raises(CheckpointError, match="permission denied"):
        open_checkpoint(tmp_path / "m.safetensors")


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1000)}, tmp_path / "m.safetensors")
    with open_checkpoint(tmp_path / "m.safetensors") as checkpoint:
        os.truncate(tmp_path / "m.safetensors", 500)
        with pytest.raises(CheckpointError, match="ended at byte 500: it changed while it was read"):
            checkpoint.read("a")


def test_a_file_that_is_written_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.ones(1000)}, path)
    with open_checkpoint(path) as checkpoint:
        before = checkpoint.stamps
        assert torch.equal(checkpoint["a"], torch.ones(1000))
        with path.open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(bytes(4))
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))  # a clock may be coarser than this test is fast
        with pytest.raises(CheckpointError, match="changed while it was read: wait until"):
            checkpoint.read("a")
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.stamps.keys() == before.keys()
        assert checkpoint.stamps != before


def test_a_file_that_is_replaced_while_it_is_read_stays_the_one_that_was_opened(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1000)}, tmp_path / "m.safetensors")
    save_file({"a": torch.zeros(1000)}, tmp_path / "new.safetensors")
    with open_checkpoint(tmp_path / "m.safetensors") as checkpoint:
        (tmp_path / "new.safetensors").replace(tmp_path / "m.safetensors")
        assert torch.equal(checkpoint["a"], torch.ones(1000))


def test_unknown_dtypes_and_gguf_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2), "b": torch.ones(2)}, tmp_path / "m.safetensors")
    content = (tmp_path / "m.safetensors").read_bytes()
    (tmp_path / "m.safetensors").write_bytes(content.replace(b'"F32"', b'"F99"', 1))
    (tmp_path / "n.gguf").write_bytes(b"GGUF" + bytes(60))
    with open_checkpoint(tmp_path / "m.safetensors") as checkpoint:
        (name,) = checkpoint.unreadable
        assert set(checkpoint) == {"a", "b"} - {name}
        with pytest.raises(CheckpointError, match="dtype F99"):
            checkpoint.read(name)
    with open_checkpoint(tmp_path / "n.gguf") as checkpoint:
        assert "GGUF" in checkpoint.unreadable["n.gguf"]
        assert not checkpoint


def test_a_corrupt_bool_is_told(tmp_path: Path) -> None:
    save_file({"a": torch.ones(4, dtype=torch.bool)}, tmp_path / "m.safetensors")
    content = bytearray((tmp_path / "m.safetensors").read_bytes())
    content[-1] = 7
    (tmp_path / "m.safetensors").write_bytes(content)
    with open_checkpoint(tmp_path / "m.safetensors") as checkpoint, pytest.raises(CheckpointError, match="corrupt"):
        checkpoint.read("a")


def test_a_failed_opening_leaves_no_file_open(tmp_path: Path) -> None:
    _sharded(tmp_path)
    (tmp_path / "model-00004-of-00004.safetensors").write_bytes(b"")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CheckpointError, match="is empty"):
        open_checkpoint(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
