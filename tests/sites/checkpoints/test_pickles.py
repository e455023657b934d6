"""PyTorch files: values as torch reads them, bytes only as asked for, and code never."""

from __future__ import annotations

import argparse
import io
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints import open_checkpoint, pickles
from rankwise.sites.checkpoints.pickles import pickle_file
from rankwise.sites.checkpoints.ranges import LocalRanges
from tests.sites.checkpoints.test_header import Memory


def test_views_transposes_ties_and_parameters(tmp_path: Path) -> None:
    base = torch.randn(10, 6)
    weights = {
        "base": base,
        "tied": base,
        "rows": base[2:5],
        "columns": base[:, 1:3],
        "transposed": base.T,
        "one": base[3, 4],
        "parameter": torch.nn.Parameter(torch.randn(4, dtype=torch.float64)),
        "strided": base[::3, ::2],
        "none": base[:0],
    }
    torch.save(weights, tmp_path / "m.pt")
    with open_checkpoint(tmp_path / "m.pt") as checkpoint:
        for name, value in weights.items():
            assert torch.equal(checkpoint[name], value.detach())
            assert checkpoint.entries[name].shape == tuple(value.shape)
        assert torch.equal(checkpoint.read("transposed", (slice(1, 4), 2)), base.T[1:4, 2])
        assert torch.equal(checkpoint.read("strided", (slice(None, None, 2),)), base[::3, ::2][::2])
        assert not checkpoint["base"].requires_grad


def test_a_module_s_state_with_buffers_and_counters(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with open_checkpoint(tmp_path) as checkpoint:
        assert set(checkpoint) == set(model.state_dict())
        assert all(torch.equal(checkpoint[name], value) for name, value in model.state_dict().items())
        assert checkpoint.notes == []


class CountedRanges(LocalRanges):
    count = 0

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.count += len(buffer)
        super().read_into(offset, buffer)


def test_opening_and_reading_rows_do_not_read_the_file(tmp_path: Path) -> None:
    weights = {f"w{at}": torch.randn(500, 1000) for at in range(4)}
    torch.save(weights, tmp_path / "m.pt")
    source = CountedRanges(tmp_path / "m.pt")
    file = pickle_file(source, "m.pt")
    assert source.count < os.path.getsize(tmp_path / "m.pt") / 4
    source.count = 0
    assert torch.equal(file.tensors["w2"].read((slice(10, 20),)), weights["w2"][10:20])
    assert source.count == 10 * 1000 * 4
    file.close()


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict", "module"])
def test_nested_weights_are_found_and_said(tmp_path: Path, key: str) -> None:
    model = {"module._orig_mod.w": torch.randn(2, 3), "module._orig_mod.b": torch.randn(2)}
    optimizer = {"state": {0: {"exp_avg": torch.zeros(2, 3)}}, "param_groups": [{"lr": 0.1}]}
    content = {key: model, "optimizer": optimizer, "iter_num": 3, "best_val_loss": torch.tensor(1.5)}
    torch.save({**content, "config": {"dataset": "x"}, "model_args": {"n_layer": 2}}, tmp_path / "ckpt.pt")
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint) == ["w", "b"]
        assert checkpoint.config == {"n_layer": 2}
        notes = " | ".join(checkpoint.notes)
        assert f"under '{key}'" in notes
        assert "prefix 'module.'" in notes
        assert "'_orig_mod.'" in notes
        assert "left aside 'optimizer'" in notes


def test_a_config_beside_the_weights_comes_first(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.ones(2)}, "model_args": {"n_layer": 2}}, tmp_path / "ckpt.pt")
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    with open_checkpoint(tmp_path / "ckpt.pt") as checkpoint:
        assert checkpoint.config == {"model_type": "x"}


def test_the_old_format_and_a_compressed_archive_are_loaded_whole_and_said(tmp_path: Path) -> None:
    weights = {"w": torch.randn(20, 30), "t": torch.randn(4, 5).T}
    torch.save(weights, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save(weights, tmp_path / "new.pt")
    with (
        zipfile.ZipFile(tmp_path / "new.pt") as archive,
        zipfile.ZipFile(tmp_path / "packed.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for member in archive.infolist():
            packed.writestr(member.filename, archive.read(member))
    for name in ("old.pt", "packed.pt"):
        with open_checkpoint(tmp_path / name) as checkpoint:
            assert any("loaded whole" in note for note in checkpoint.notes)
            assert torch.equal(checkpoint["w"], weights["w"])
            assert torch.equal(checkpoint.read("t", (1, slice(1, 3))), weights["t"][1, 1:3])


def test_a_torch_that_does_not_tell_where_storages_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {"w": torch.randn(3, 4), "none": torch.zeros(0)}
    torch.save(weights, tmp_path / "m.pt")
    monkeypatch.setattr(pickles, "_start_of_storage", lambda tensor: None)
    with open_checkpoint(tmp_path / "m.pt") as checkpoint:
        assert any("loaded whole" in note for note in checkpoint.notes)
        assert torch.equal(checkpoint.read("w", (slice(1, 3),)), weights["w"][1:3])


class Attack:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("new_format", [True, False], ids=["zip", "old"])
def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path, new_format: bool) -> None:
    mark = tmp_path / "mark"
    content = {"w": torch.ones(2), "x": Attack(mark)}
    torch.save(content, tmp_path / "m.pt", _use_new_zipfile_serialization=new_format)
    with pytest.raises(
        CheckpointError, match=r"pickle with code in it \(it asks for posix\.mkdir\): refused"
    ) as caught:
        open_checkpoint(tmp_path / "m.pt")
    assert len(str(caught.value).splitlines()) == 1
    assert not mark.exists()


def test_a_bare_pickle_and_objects_that_are_no_tensors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bare.pkl").write_bytes(pickle.dumps(Attack(tmp_path / "mark")))
    torch.save({"args": argparse.Namespace(a=1)}, tmp_path / "args.pt")
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    torch.save({"step": 3}, tmp_path / "nothing.pt")
    torch.save(torch.ones(3), tmp_path / "tensor.pt")
    for name, words in (
        ("bare.pkl", "code|plain tensors"),
        ("args.pt", "argparse.Namespace"),
        ("list.pt", "holds a list"),
        ("nothing.pt", "holds no tensors"),
        ("tensor.pt", "a table of named tensors was expected"),
    ):
        with pytest.raises(CheckpointError, match=words) as caught:
            open_checkpoint(tmp_path / name)
        assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "mark").exists()


def test_sparse_and_expanded_tensors_are_named(tmp_path: Path) -> None:
    torch.save(
        {"s": torch.eye(3).to_sparse(), "e": torch.ones(1, 3).expand(10**6, 3), "w": torch.ones(2)}, tmp_path / "m.pt"
    )
    with open_checkpoint(tmp_path / "m.pt") as checkpoint:
        assert set(checkpoint) == {"w"}
        assert "sparse" in checkpoint.unreadable["s"]
        assert "expanded" in checkpoint.unreadable["e"]


def archive(weights: dict[str, torch.Tensor]) -> bytes:
    stream = io.BytesIO()
    torch.save(weights, stream)
    return stream.getvalue()


VALID = archive({"w": torch.arange(6.0).view(2, 3), "b": torch.ones(3)})


@pytest.mark.parametrize("part", range(20))
def test_a_truncated_archive_is_told(part: int) -> None:
    source = Memory(VALID[: len(VALID) * part // 20])
    with pytest.raises(CheckpointError) as caught:
        pickle_file(source, "m.pt")
    assert len(str(caught.value).splitlines()) == 1


@given(st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=8))
@example([(VALID.rindex(b"PK\6\7") + 4, 2)])
@settings(max_examples=60)
def test_a_mutated_archive_is_read_or_refused(changes: list[tuple[int, int]]) -> None:
    content = bytearray(VALID)
    for position, value in changes:
        content[position] = value
    try:
        tensors = pickle_file(Memory(bytes(content)), "m.pt").tensors
    except CheckpointError:
        return
    for tensor in tensors.values():
        assert tensor.read(None).shape == tensor.shape


def test_a_storage_that_claims_more_than_the_archive_holds(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(io.BytesIO(VALID)) as whole,
        zipfile.ZipFile(tmp_path / "m.pt", "w", zipfile.ZIP_STORED) as short,
    ):
        for member in whole.infolist():
            content = whole.read(member)
            short.writestr(member.filename, content[:-8] if member.filename.endswith("/data/0") else content)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path / "m.pt")
    assert len(str(caught.value).splitlines()) == 1
