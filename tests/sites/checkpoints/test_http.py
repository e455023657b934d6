"""Reading over HTTP asks for little, survives what networks do, and says what it cannot survive."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import save

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints import http as module
from rankwise.sites.checkpoints import open_checkpoint
from tests.sites.checkpoints.servers import Served, serving

WEIGHTS = {"big": torch.arange(400_000, dtype=torch.float32).view(1000, 400), "small": torch.ones(3)}


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.0)


@pytest.fixture
def server() -> Iterator[Served]:
    with serving({"/m/model.safetensors": save(WEIGHTS), "/m/config.json": b'{"model_type": "x"}'}) as served:
        yield served


def test_reads_values_config_and_only_the_rows_asked_for(server: Served) -> None:
    checkpoint = open_checkpoint(f"{server.url}/m/model.safetensors?download=true")
    assert checkpoint.config == {"model_type": "x"}
    before = server.bytes_asked
    rows = checkpoint.read("big", (slice(500, 510),))
    assert torch.equal(rows, WEIGHTS["big"][500:510])
    assert server.bytes_asked - before == 10 * 400 * 4
    assert torch.equal(checkpoint["big"], WEIGHTS["big"])
    assert torch.equal(checkpoint["small"], WEIGHTS["small"])


def test_opening_a_large_file_fetches_only_its_head(server: Served) -> None:
    open_checkpoint(f"{server.url}/m/model.safetensors")
    weights = [last - first + 1 for path, first, last in server.ranges if path.endswith(".safetensors")]
    assert weights == [module.HEAD_BYTES]


def test_shards_of_an_index_lie_beside_it() -> None:
    index = {"weight_map": {"a": "s 1.safetensors", "b": "s 2.safetensors"}}
    a, b = torch.randn(3, 4), torch.randn(5)
    files = {
        "/x/model.safetensors.index.json": json.dumps(index).encode(),
        "/x/s 1.safetensors": save({"a": a}),
        "/x/s 2.safetensors": save({"b": b}),
    }
    with serving(files) as served:
        checkpoint = open_checkpoint(f"{served.url}/x/model.safetensors.index.json")
        assert checkpoint.config is None
        assert torch.equal(checkpoint["a"], a)
        assert torch.equal(checkpoint["b"], b)
        del served.files["/x/s 2.safetensors"]
        with pytest.raises(CheckpointError, match=r"s%202\.safetensors does not exist on the server \(HTTP 404\)"):
            open_checkpoint(f"{served.url}/x/model.safetensors.index.json")


def test_transient_failures_and_broken_connections_are_taken_up_again(server: Served) -> None:
    server.failures = [503, 429]
    checkpoint = open_checkpoint(f"{server.url}/m/model.safetensors")
    server.cut_after = [100_000, 1]
    assert torch.equal(checkpoint["big"], WEIGHTS["big"])


def test_a_server_that_always_fails_is_given_up(server: Served) -> None:
    server.failures = [503] * module.ATTEMPTS
    with pytest.raises(CheckpointError, match="cannot be fetched: HTTP 503"):
        open_checkpoint(f"{server.url}/m/model.safetensors")


def test_a_server_that_ignores_ranges_is_refused_rather_than_downloaded(server: Served) -> None:
    server.honours_ranges = False
    with pytest.raises(CheckpointError, match="ignores Range requests"):
        open_checkpoint(f"{server.url}/m/model.safetensors")


def test_a_file_that_changes_while_it_is_read_is_noticed(server: Served) -> None:
    checkpoint = open_checkpoint(f"{server.url}/m/model.safetensors")
    assert checkpoint.stamps["model.safetensors"].endswith('-"same"')
    server.tags = ["other"]
    with pytest.raises(CheckpointError, match="changed on the server"):
        checkpoint.read("big")


@pytest.mark.parametrize(("status", "words"), [(404, "does not exist"), (403, "refuses access"), (401, "refuses")])
def test_final_statuses_are_told_at_once(server: Served, status: int, words: str) -> None:
    server.failures = [status]
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(f"{server.url}/m/model.safetensors")


def test_a_refused_sibling_is_a_note_and_queries_are_never_shown(server: Served) -> None:
    with serving(
        {"/model.safetensors": save(WEIGHTS)}, lambda path: (403, b"") if "config" in path else None
    ) as strict:
        checkpoint = open_checkpoint(f"{strict.url}/model.safetensors")
    assert checkpoint.config is None
    assert any("no config.json was read" in note and "refuses access" in note for note in checkpoint.notes)
    assert "secret" not in repr(open_checkpoint(f"{server.url}/m/model.safetensors?signature=secret"))


def test_an_empty_file_and_a_truncated_one() -> None:
    whole = save(WEIGHTS)
    with serving({"/e.safetensors": b"", "/t.safetensors": whole[:-1]}) as served:
        with pytest.raises(CheckpointError, match="is empty"):
            open_checkpoint(f"{served.url}/e.safetensors")
        with pytest.raises(CheckpointError, match="truncated"):
            open_checkpoint(f"{served.url}/t.safetensors")


def test_urls_that_lead_nowhere_say_so_in_one_line_and_without_secrets() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(CheckpointError) as caught:
            open_checkpoint(f"http://user:secret@127.0.0.1:{port}/x.safetensors?token=secret")
    assert "secret" not in str(caught.value)
    for url in ("http://127.0.0.1:80x/x.safetensors", "http://[bad/x.safetensors", "https://host/folder/"):
        with pytest.raises(CheckpointError) as caught:
            open_checkpoint(url)
        assert "\n" not in str(caught.value)
