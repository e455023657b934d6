"""`hf://` reads a repository by ranges, through the real file system of huggingface-hub against a local Hub."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import save

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints import open_checkpoint
from tests.sites.checkpoints.servers import Served, serving_hub

pytest.importorskip("huggingface_hub", reason="needs the extra 'hub'")

BIG = torch.arange(400_000, dtype=torch.float32).view(1000, 400)
SMALL = torch.randn(5)


def pickled() -> bytes:
    stream = io.BytesIO()
    torch.save({"big": BIG, "small": SMALL}, stream)
    return stream.getvalue()


FILES = {
    "config.json": b'{"model_type": "x"}',
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"big": "a.safetensors", "small": "b.safetensors"}}
    ).encode(),
    "a.safetensors": save({"big": BIG}),
    "b.safetensors": save({"small": SMALL}),
    "old/pytorch_model.bin": pickled(),
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving_hub("org/name", FILES) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


def test_a_sharded_repository_is_read_by_ranges(hub: Served) -> None:
    with open_checkpoint("hf://org/name") as checkpoint:
        assert checkpoint.config == {"model_type": "x"}
        assert hub.bytes_asked < 4000
        before = hub.bytes_asked
        assert torch.equal(checkpoint.read("big", (slice(10, 20),)), BIG[10:20])
        assert hub.bytes_asked - before == 10 * 400 * 4
        assert torch.equal(checkpoint["big"], BIG)
        assert torch.equal(checkpoint["small"], SMALL)


def test_a_file_and_a_folder_of_a_repository(hub: Served) -> None:
    assert list(open_checkpoint("hf://org/name/b.safetensors")) == ["small"]
    assert set(open_checkpoint("hf://org/name/old")) == {"big", "small"}


def test_a_pickle_is_read_by_ranges_too(hub: Served) -> None:
    checkpoint = open_checkpoint("hf://org/name/old/pytorch_model.bin")
    assert hub.bytes_asked < len(FILES["old/pytorch_model.bin"]) / 2
    before = hub.bytes_asked
    assert torch.equal(checkpoint.read("big", (3,)), BIG[3])
    assert hub.bytes_asked - before == 400 * 4


def test_what_a_file_holds_is_in_its_stamp(hub: Served) -> None:
    checkpoint = open_checkpoint("hf://org/name/b.safetensors")
    assert checkpoint.stamps == {"b.safetensors": f"{len(FILES['b.safetensors'])}-{'0' * 40}"}


def test_revisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving_hub("org/name", {"model.safetensors": save({"small": SMALL})}, revision="v2") as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        assert torch.equal(open_checkpoint("hf://org/name@v2")["small"], SMALL)
        assert torch.equal(open_checkpoint("hf://org/name", revision="v2")["small"], SMALL)
        with pytest.raises(CheckpointError, match="states another revision"):
            open_checkpoint("hf://org/name@v2", revision="v3")
        with pytest.raises(CheckpointError):
            open_checkpoint("hf://org/name@v4")


@pytest.mark.parametrize("address", ["hf://org/absent", "hf://org/name/absent.safetensors", "hf://alone", "hf://"])
def test_what_is_not_there_is_told_in_one_line(hub: Served, address: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(address)
    assert "\n" not in str(caught.value)


def test_a_local_path_has_no_revision(tmp_path) -> None:
    (tmp_path / "model.safetensors").write_bytes(save({"small": SMALL}))
    with pytest.warns(UserWarning, match="revision='v2' has no effect"):
        open_checkpoint(tmp_path, revision="v2")
