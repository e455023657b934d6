"""The right files of a folder are chosen, whatever else lies beside them, and the choice is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints import open_checkpoint


def write(folder: Path, *names: str) -> None:
    """Weight files whose one tensor is named after the file."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        weights = {name: torch.ones(2)}
        if name.endswith(".safetensors"):
            save_file(weights, path)
        else:
            torch.save(weights, path)


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["model.safetensors", "pytorch_model.bin", "optimizer.pt", "training_args.bin"], "model.safetensors"),
        (["pytorch_model.bin", "optimizer.pt", "scheduler.pt", "rng_state_0.pth"], "pytorch_model.bin"),
        (["model.fp16.safetensors", "model.safetensors"], "model.safetensors"),
        (["diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.bin"], "diffusion_pytorch_model.safetensors"),
        (["weights.th"], "weights.th"),
        (["last.ckpt"], "last.ckpt"),
        (["ckpt.pt", "best.pt"], "ckpt.pt"),
        (["model/model.safetensors", "onnx/readme.txt.pb"], "model/model.safetensors"),
        (["transformer/a.safetensors", "1_Dense/pytorch_model.bin"], "transformer/a.safetensors"),
    ],
)
def test_the_weights_of_a_folder(tmp_path: Path, names: list[str], chosen: str) -> None:
    write(tmp_path, *names)
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint) == [chosen]
        if "/" in chosen:
            assert any(f"in the directory '{chosen.split('/')[0]}'" in note for note in checkpoint.notes)


def test_other_copies_are_said_to_be_left_aside(tmp_path: Path) -> None:
    write(tmp_path, "model.safetensors", "model.fp16.safetensors")
    with open_checkpoint(tmp_path) as checkpoint:
        assert any("left aside" in note and "model.fp16.safetensors" in note for note in checkpoint.notes)


def test_an_adapter_is_recognised_by_its_configuration(tmp_path: Path) -> None:
    write(tmp_path, "adapter_model.safetensors", "model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8}))
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint) == ["adapter_model.safetensors"]
        assert checkpoint.adapter == {"peft_type": "LORA", "r": 8}
        assert checkpoint.config is None


def test_a_pickled_index_of_shards(tmp_path: Path) -> None:
    write(tmp_path, "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
    files = [f"pytorch_model-0000{at}-of-00002.bin" for at in (1, 2)]
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {name: name for name in files}}))
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint) == files


def test_an_index_of_the_likelier_of_two(tmp_path: Path) -> None:
    write(tmp_path, "a.safetensors", "b.safetensors")
    for stem, name in (("consolidated", "a.safetensors"), ("model", "b.safetensors")):
        (tmp_path / f"{stem}.safetensors.index.json").write_text(json.dumps({"weight_map": {name: name}}))
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint) == ["b.safetensors"]
        assert any("consolidated.safetensors.index.json" in note for note in checkpoint.notes)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a.pt", "b.pt"], r"holds 2 weight files \(a.pt, b.pt\): give the path of one"),
        (["consolidated.00.pth", "consolidated.01.pth"], "holds 2 weight files"),
        (["unet/a.safetensors", "vae/b.safetensors"], r"holds several models \(unet, vae\): give the path of one"),
        (["step1/a.pt", "step2/a.pt"], r"several models \(step1, step2\): .* of them, or '.*/\*' in quotes for all"),
        (["optimizer.pt", "training_args.bin"], "holds no weights"),
        (["__0_0.distcp"], "torch.distributed checkpoint: convert it"),
    ],
)
def test_what_only_the_user_can_decide(tmp_path: Path, names: list[str], words: str) -> None:
    write(tmp_path, *names)
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(tmp_path)


def test_a_pipeline_has_no_obvious_model(tmp_path: Path) -> None:
    write(tmp_path, "transformer/a.safetensors", "vae/b.safetensors")
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="several models"):
        open_checkpoint(tmp_path)


def test_links_to_a_cache_are_followed(tmp_path: Path) -> None:
    write(tmp_path / "blobs", "x.safetensors")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blobs/x.safetensors")
    with open_checkpoint(tmp_path / "snapshot") as checkpoint:
        assert list(checkpoint) == ["x.safetensors"]
